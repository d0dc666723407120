package csi

import (
	"context"
	"sync"
	"time"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/backoff"
)

// attempt is the unstaging of a volume.
type attempt struct {
	running bool
	// failures counts the failures, and next is the time of the retry.
	failures int
	next     time.Time
}

// outcome is the result of an attempt.
type outcome struct {
	volume identity
	err    error
}

// Run unstages volumes without pods until ctx ends. Each volume waits for its own driver only: their number is that of
// the volumes that are staged on the node. It returns the error of ctx.
func (p *Plugin) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait() // the calls end with ctx
	attempts := map[identity]*attempt{}
	ended := make(chan outcome)
	timer := p.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.wake:
		case <-timer.C():
		case o := <-ended:
			p.settle(attempts, o.volume, o.err)
		}
		again := p.begin(attempts, func(v identity) {
			running.Go(func() {
				o := outcome{v, p.unstage(ctx, v)}
				select {
				case ended <- o:
				case <-ctx.Done():
				}
			})
		})
		timer.Stop()
		if !again.IsZero() {
			timer.Reset(again.Sub(p.cfg.Clock.Now()))
		}
	}
}

// settle records the result of an attempt.
func (p *Plugin) settle(attempts map[identity]*attempt, v identity, err error) {
	if err == nil {
		delete(attempts, v)
		return
	}
	a := attempts[v]
	a.running = false
	a.next = p.cfg.Clock.Now().Add(backoff.After(a.failures))
	a.failures++
	p.cfg.Logger.Warn("a volume cannot be unstaged; it is tried again", "driver", v.driver, telemetry.KeyVolume, v.handle, telemetry.KeyError, err)
}

// begin starts the attempts that are due, and returns the time of the next one; zero if there is none.
func (p *Plugin) begin(attempts map[identity]*attempt, start func(identity)) (again time.Time) {
	staged, users := p.books.all()
	unused := map[identity]bool{}
	now := p.cfg.Clock.Now()
	for _, r := range idle(staged, users) {
		unused[r.identity] = true
		a := attempts[r.identity]
		switch {
		case a == nil:
			attempts[r.identity] = &attempt{running: true}
			start(r.identity)
		case a.running:
		case a.next.After(now):
			if again.IsZero() || a.next.Before(again) {
				again = a.next
			}
		default:
			a.running = true
			start(r.identity)
		}
	}
	for v, a := range attempts {
		if !unused[v] && !a.running {
			delete(attempts, v) // it is in use again
		}
	}
	return again
}
