package syncloop

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// quietStart is how long components that nothing waits for do not begin. All processes of a node start together, on
// processors that new pods need.
const quietStart = 5 * time.Second

// later returns a component that begins when quietStart has passed.
func later(c clock.Clock, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		timer := c.NewTimer(quietStart)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
			return run(ctx)
		}
	}
}
