// Package rounds is how what the API server should have of each pod is brought there: a few workers take what is to be
// looked at from a queue, and everything is put into it now and then.
package rounds

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Config says what is done in a round.
type Config[K comparable] struct {
	Queue workqueue.TypedDelayingInterface[K]
	// Workers is how many keys are settled at a time, each by one of them.
	Workers int
	// Settle does what a key needs.
	Settle func(ctx context.Context, key K)
	// Recheck puts every key into the queue, each Period.
	Recheck func()
	Period  time.Duration
	Clock   clock.WithTicker
}

// Run settles keys until ctx ends, whose error it returns when nothing is under way any more. It shuts the queue down.
func Run[K comparable](ctx context.Context, cfg Config[K]) error {
	group, ctx := errgroup.WithContext(ctx)
	for range cfg.Workers {
		group.Go(func() error {
			for {
				key, closed := cfg.Queue.Get()
				if closed {
					return nil
				}
				if ctx.Err() == nil {
					cfg.Settle(ctx, key)
				}
				cfg.Queue.Done(key)
			}
		})
	}
	group.Go(func() error {
		defer cfg.Queue.ShutDown()
		ticker := cfg.Clock.NewTicker(cfg.Period)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C():
				cfg.Recheck()
			}
		}
	})
	if err := group.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}
