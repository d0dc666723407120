// Package rounds reconciles pods with the API server: a few workers take keys from a queue, and every key is put into
// the queue periodically.
package rounds

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Config configures Run.
type Config[K comparable] struct {
	Queue workqueue.TypedDelayingInterface[K]
	// Workers is how many keys are settled at a time. Each key is settled by one worker at a time.
	Workers int
	// Settle reconciles a key.
	Settle func(ctx context.Context, key K)
	// Recheck puts every key into the queue, once each Period.
	Recheck func()
	Period  time.Duration
	Clock   clock.WithTicker
}

// Run settles keys until ctx ends, and returns the error of ctx when all workers have ended. It shuts down the queue.
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
