package imagegc

import (
	"context"
	"math"
)

// RemoveUnused removes every unused image that is older than MinAge, however full the file system is, because the node
// is short of disk. It may be called concurrently with Run, and waits for the end of a running round. It returns the
// errors of images that could not be removed.
func (c *Collector) RemoveUnused(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	runtime, err := c.cfg.Runtime(ctx)
	if err != nil {
		return err
	}
	service, err := c.cfg.Images(ctx)
	if err != nil {
		return err
	}
	now := c.cfg.Clock.Now()
	images, err := c.observe(ctx, runtime, service, now)
	if err != nil {
		return err
	}
	unused := c.cfg.Policy.ForSpace(images, math.MaxInt64, now)
	if len(unused) == 0 {
		return nil
	}
	r := &removal{Collector: c, service: service, since: now, tried: map[string]bool{}}
	return r.removeAll(ctx, causeSpace, "the node is short of disk", unused)
}
