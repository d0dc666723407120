package syncloop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

func TestAComponentThatNothingWaitsForBeginsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		var after time.Duration
		run := later(clock.RealClock{}, func(context.Context) error {
			after = time.Since(begun)
			return nil
		})
		if err := run(t.Context()); err != nil || after != quietStart {
			t.Errorf("it begins after %v (%v), want %v", after, err, quietStart)
		}
		ctx, end := context.WithTimeout(t.Context(), quietStart/2)
		defer end()
		if err := run(ctx); err == nil {
			t.Error("a process that ends before that has run it")
		}
	})
}
