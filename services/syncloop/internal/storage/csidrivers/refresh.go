package csidrivers

import (
	"context"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// Refresh asks a driver for its description of this node again, for example because volumes cannot be attached to it
// any more. It does not block.
func (d *Drivers) Refresh(name string) {
	d.mu.Lock()
	known := d.drivers[name]
	if known != nil {
		known.stale = true
	}
	d.mu.Unlock()
	select {
	case d.due <- struct{}{}:
	default:
	}
}

// Run refreshes descriptions, as often as the objects of the drivers request it with
// nodeAllocatableUpdatePeriodSeconds, until ctx ends. It returns the error of ctx. A driver that hangs delays no other.
func (d *Drivers) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ticker := d.cfg.Clock.NewTimer(lookInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.due:
		case <-ticker.C():
			ticker.Reset(lookInterval)
			d.look(ctx)
		}
		for _, known := range d.begin() {
			running.Go(func() { d.refresh(ctx, known) })
		}
	}
}

// look marks the drivers whose description is older than their objects permit.
func (d *Drivers) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	for _, node := range d.Nodes() {
		object, err := d.cfg.Object(ctx, node.Driver)
		if err != nil { // the next look asks again
			continue
		}
		d.mu.Lock()
		known, period := d.drivers[node.Driver], periodOf(object)
		if known != nil && !known.refreshing && period > 0 && d.cfg.Clock.Since(known.described) >= period {
			known.stale = true
		}
		d.mu.Unlock()
	}
}

// periodOf returns the period after which the description of a driver is refreshed; 0 for never.
func periodOf(object *storagev1.CSIDriver) time.Duration {
	if object == nil || object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
		return 0
	}
	return time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
}

// begin returns the marked drivers that are not being refreshed.
func (d *Drivers) begin() []*driver {
	d.mu.Lock()
	defer d.mu.Unlock()
	var begun []*driver
	for _, known := range d.drivers {
		if known.stale && !known.refreshing {
			known.stale, known.refreshing = false, true
			begun = append(begun, known)
		}
	}
	return begun
}

// refresh asks a driver about this node. A failure leaves the previous description.
func (d *Drivers) refresh(ctx context.Context, known *driver) {
	name := known.plugin.Name
	node, err := describe(ctx, name, known.conn)
	d.mu.Lock()
	known.refreshing, known.described = false, d.cfg.Clock.Now()
	again := known.stale
	text := ""
	if err != nil {
		text = err.Error()
	}
	news := text != known.trouble
	known.trouble = text
	changed := err == nil && d.drivers[name] == known && !node.equal(known.node)
	if changed {
		known.node = node
	}
	d.mu.Unlock()
	if err != nil && news && ctx.Err() == nil {
		d.cfg.Logger.Warn("cannot refresh what a CSI driver says of this node; the previous description stays",
			telemetry.KeyDriver, name, telemetry.KeyError, err)
	}
	if changed {
		d.cfg.Changed()
	}
	if again {
		d.Refresh(name)
	}
}
