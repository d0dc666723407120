// Package require checks a test's requirements of the machine. It imports nothing of this repository, so that any test
// can use it.
package require

import (
	"errors"
	"os"
	"testing"
)

// NoError skips a test when err reports a missing requirement of the machine, or fails it with CI=true, where all
// requirements have to be met.
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

// Root skips or fails a test that is not run by root, like NoError. The name of the part that needs root is in the
// message.
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		NoError(t, errors.New(why+" needs root: run the test as root"))
	}
}
