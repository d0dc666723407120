package watchdog_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestAStepThatDoesNotEndIsFoundByItsLoop has a loop that waits for an hour between two steps, which is well, and then
// a step that does not end.
func TestAStepThatDoesNotEndIsFoundByItsLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbuffer.Buffer
		steps, found := watchdog.NewSteps(clock.RealClock{}, 10*time.Second), []string{}
		dog := watchdog.New(watchdog.Config{
			Loops:   []watchdog.Loop{{Name: "lease", Check: steps.Stands}},
			Changed: func(stuck []string) { found = append(found, strings.Join(stuck, " ")) },
			Clock:   clock.RealClock{}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- dog.Run(ctx) }()
		steps.Do(func() { time.Sleep(10*time.Second + watchdog.Limit) })
		time.Sleep(time.Hour)
		if len(found) > 0 {
			t.Errorf("%q stood still, want none", found)
		}
		// The check and the one who looks at its result are due at the same times, in any order.
		steps.Do(func() { time.Sleep(10*time.Second + watchdog.Limit + 4*watchdog.Period) })
		time.Sleep(4 * watchdog.Period)
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(found) != 2 || found[0] != "lease" || found[1] != "" {
			t.Errorf("%q stood still, want the lease for a time", found)
		}
		if want := "a step of it has not ended for 3"; !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q: %s", want, log.String())
		}
	})
}
