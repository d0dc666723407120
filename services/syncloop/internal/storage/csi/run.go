package csi

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/backoff"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// attempt is the unstaging of a volume.
type attempt struct {
	running bool
	// begun is the time of the first attempt, and since that of the last one.
	begun, since time.Time
	// failures counts the failures, err is the last one, and next the time of the retry.
	failures int
	next     time.Time
	err      error
	// retry is true if Retry was called during the attempt.
	retry bool
}

// unstaging has the volumes that are being unstaged.
type unstaging struct {
	mu       sync.Mutex
	attempts map[identity]*attempt
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
			p.settle(o.volume, o.err)
		}
		read := p.readAgain()
		again := p.begin(func(v identity) {
			running.Go(func() {
				o := outcome{v, p.unstage(ctx, v)}
				select {
				case ended <- o:
				case <-ctx.Done():
				}
			})
		})
		timer.Stop()
		if again.IsZero() || !read.IsZero() && read.Before(again) {
			again = read
		}
		if !again.IsZero() {
			timer.Reset(again.Sub(p.cfg.Clock.Now()))
		}
	}
}

// Retry unstages without delay the volumes of the drivers that are registered, because one may have just registered.
func (p *Plugin) Retry() {
	p.unstaging.hurry(func(v identity) bool {
		_, err := p.cfg.Drivers.Conn(v.driver)
		return err == nil
	})
	p.signal()
}

// hurry has volumes unstaged without delay. One that is being unstaged is tried again if that fails.
func (u *unstaging) hurry(which func(identity) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for v, a := range u.attempts {
		if which(v) {
			a.next, a.retry = time.Time{}, a.running
		}
	}
}

// settle records the result of an attempt.
func (p *Plugin) settle(v identity, err error) {
	p.unstaging.mu.Lock()
	if err == nil {
		delete(p.unstaging.attempts, v)
	} else {
		a := p.unstaging.attempts[v]
		a.running, a.err = false, err
		if a.next = p.cfg.Clock.Now().Add(backoff.After(a.failures)); a.retry {
			a.next, a.retry = time.Time{}, false
		}
		a.failures++
	}
	p.unstaging.mu.Unlock()
	if err != nil {
		p.cfg.Logger.Warn("a volume cannot be unstaged; it is tried again", "driver", v.driver, telemetry.KeyVolume, v.handle, telemetry.KeyError, err)
	}
}

// begin starts the attempts that are due, and returns the time of the next one; zero if there is none.
func (p *Plugin) begin(start func(identity)) (again time.Time) {
	if p.books.isRead() != nil {
		return time.Time{} // a pod may use what seems unused
	}
	staged, users := p.books.all()
	unused := map[identity]bool{}
	now := p.cfg.Clock.Now()
	p.unstaging.mu.Lock()
	defer p.unstaging.mu.Unlock()
	attempts := p.unstaging.attempts
	for _, r := range idle(staged, users) {
		unused[r.identity] = true
		a := attempts[r.identity]
		switch {
		case a == nil:
			attempts[r.identity] = &attempt{running: true, begun: now, since: now}
			start(r.identity)
		case a.running:
		case a.next.After(now):
			if again.IsZero() || a.next.Before(again) {
				again = a.next
			}
		default:
			a.running, a.since = true, now
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

// Unused returns the staged volumes that no pod uses, which are being unstaged, sorted by driver and handle. The name
// of one is its handle.
func (p *Plugin) Unused() []*enginev1.Volume {
	if p.books.isRead() != nil {
		return nil
	}
	staged, users := p.books.all()
	p.unstaging.mu.Lock()
	defer p.unstaging.mu.Unlock()
	var all []*enginev1.Volume
	for _, r := range idle(staged, users) {
		one := &enginev1.Volume{
			Name: r.handle, Plugin: pluginName, State: enginev1.VolumeState_VOLUME_STATE_TEARING_DOWN,
			Path: p.books.staging(r.identity), Driver: r.driver, PersistentVolume: r.identity.name,
		}
		if a := p.unstaging.attempts[r.identity]; a != nil {
			a.describe(one, p.cfg.Clock.Now())
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *enginev1.Volume) int {
		return cmp.Or(cmp.Compare(a.GetDriver(), b.GetDriver()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return all
}

// describe adds the state of an attempt to a volume.
func (a *attempt) describe(one *enginev1.Volume, now time.Time) {
	one.WantedSince = timestamppb.New(a.begun)
	if a.running {
		one.Since = timestamppb.New(a.since)
	}
	a.describeError(one)
	if a.running && now.Sub(a.since) >= volumes.SlowAfter {
		one.WaitsFor = answerOf(one.GetDriver(), "NodeUnstageVolume")
	}
}

// describeError adds the last error of an attempt to a volume.
func (a *attempt) describeError(one *enginev1.Volume) {
	if a.err == nil {
		return
	}
	one.LastError = a.err.Error()
	if waits := (interface {
		error
		WaitsFor() string
	})(nil); errors.As(a.err, &waits) {
		one.WaitsFor = waits.WaitsFor()
	}
	if !a.running {
		one.NextTryAt = timestamppb.New(a.next)
	}
}

// Driver implements persistentvolumes.Driven.
func (p *Plugin) Driver(dir string) string {
	r, _ := p.books.user(placeOf(dir))
	return r.driver
}
