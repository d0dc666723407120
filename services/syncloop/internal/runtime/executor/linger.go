package executor

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// startLinger is how much longer the start of a container may take after its context has ended. A start takes some
// tenths of a second. If the caller cancels it midway, containerd may keep a task without a record. It then reports the
// container as ended, but removes neither the container nor its pod until containerd restarts ("cannot delete running
// task").
const startLinger = 2 * time.Second

// linger returns a context that ends by later than ctx. The returned function ends it at once and must be called.
func linger(ctx context.Context, clk clock.Clock, by time.Duration) (context.Context, context.CancelFunc) {
	lingering, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := clk.NewTimer(by)
		defer timer.Stop()
		select {
		case <-timer.C():
			cancel()
		case <-lingering.Done():
		}
	})
	return lingering, func() {
		stop()
		cancel()
	}
}
