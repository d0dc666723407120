package starting_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/starting"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestAStartThatHangsNamesItsStep checks that each step is reported once, and none that may take long or that comes
// after the start.
func TestAStartThatHangsNamesItsStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logbuffer.Buffer
		steps := starting.Watch(t.Context(), clock.RealClock{}, slog.New(slog.NewTextHandler(&log, nil)))
		wait := func(d time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			<-ctx.Done()
			synctest.Wait()
		}
		steps.At("read /state/evictions.json")
		wait(29 * time.Second)
		if got := log.String(); got != "" {
			t.Errorf("after 29 s the log is %q, want none", got)
		}
		wait(2 * time.Minute)
		steps.At("")
		wait(2 * time.Minute)
		steps.At("read /state/endings")
		wait(2 * time.Minute)
		steps.At("read /state/resizes")
		steps.Serving()
		wait(2 * time.Minute)
		for step, want := range map[string]int{"evictions.json": 1, "endings": 1, "resizes": 0, "takes long": 2} {
			if got := strings.Count(log.String(), step); got != want {
				t.Errorf("%d lines name %q, want %d:\n%s", got, step, want, log.String())
			}
		}
	})
}

// TestAProcessThatStartsReportsThatItWorks checks that there is a report at once, in time for a parent that expects one
// every 10 s, however long a step takes, and none after the start.
func TestAProcessThatStartsReportsThatItWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := starting.Watch(t.Context(), clock.RealClock{}, slog.New(slog.DiscardHandler))
		var reports []time.Time
		begun := time.Now()
		steps.Report(func() { reports = append(reports, time.Now()) })
		steps.At("") // it stands by
		<-time.After(time.Minute)
		steps.Serving()
		served := time.Now()
		<-time.After(time.Minute)
		synctest.Wait()
		last := begun
		for _, at := range append(reports, served) {
			if quiet := at.Sub(last); quiet < 0 || quiet > 5*time.Second {
				t.Errorf("a report at %v after one at %v, want one every 5s until %v", at, last, served)
			}
			last = at
		}
		if len(reports) == 0 || !reports[0].Equal(begun) {
			t.Errorf("reports %v, want the first at %v", reports, begun)
		}
	})
}

func TestAProcessWithoutStepsNeedsNone(*testing.T) {
	var none *starting.Steps
	none.At("read a file")
	none.Report(func() {})
	none.Serving()
}
