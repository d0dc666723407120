// Package require is how tests say what they need of the machine. It imports nothing of this repository, so that any test
// can use it.
package require

import (
	"errors"
	"os"
	"testing"
)

// NoError skips a test when the machine lacks what err says, or fails it with CI=true: there every real part has to be.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("this machine cannot run the test: %v", err)
	}
	t.Skipf("this machine cannot run the test: %v", err)
}

// Root is NoError for a test that needs to be root, and why.
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		NoError(t, errors.New(why+" needs root: run the test as root"))
	}
}
