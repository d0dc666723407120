package eventually_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/eventually"
)

// failing is a test that records its failure.
type failing struct{ text string }

var errFatal = errors.New("fatal")

// Helper implements eventually.T.
func (f *failing) Helper() {}

// Fatalf implements eventually.T.
func (f *failing) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	panic(errFatal)
}

// fails returns the failure text of a wait.
func fails(t *testing.T, wait func(t eventually.T)) string {
	t.Helper()
	f := &failing{}
	func() {
		defer func() {
			if p := recover(); p != nil && p != any(errFatal) {
				panic(p)
			}
		}()
		wait(f)
	}()
	if f.text == "" {
		t.Fatal("it does not fail")
	}
	return f.text
}

func TestItReturnsWhenTheConditionHolds(t *testing.T) {
	checks, steps := 0, 0
	eventually.Wait{Step: func() { steps++ }}.That(t, "it is checked three times", func() bool {
		checks++
		return checks == 3
	})
	if steps != 2 {
		t.Errorf("%d steps between 3 checks, want 2", steps)
	}
	eventually.That(t, "it holds at once", func() bool { return true })
}

func TestAFailureSaysWhatWasWaitedForAndWhatIsSeen(t *testing.T) {
	never := func() bool { return false }
	text := fails(t, func(t eventually.T) {
		eventually.Wait{Patience: time.Millisecond, State: func() string {
			return "there are 2"
		}}.That(t, "there are 3", never)
	})
	if !strings.Contains(text, "until there are 3: context deadline exceeded; there are 2") {
		t.Errorf("it says %q, want text with %q", text, "until there are 3: context deadline exceeded; there are 2")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if text := fails(t, func(t eventually.T) { eventually.In(ctx, t, "it is over", never) }); !strings.HasSuffix(text, "until it is over: context canceled") {
		t.Errorf("it says %q, want text ending with %q", text, "until it is over: context canceled")
	}
}
