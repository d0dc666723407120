package podcertificates

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/reflector"
)

// Run watches requests once a pod asks for a certificate, and tells pods when to replace theirs, until ctx ends. It
// returns the error of ctx.
func (c *Certificates) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.wanted:
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.cfg.API.Follow(ctx, follower{c: c, ctx: ctx}) })
	group.Go(func() error { return c.watchTime(ctx) })
	return group.Wait()
}

// watchTime tells pods when to ask again.
func (c *Certificates) watchTime(ctx context.Context) error {
	timer := c.cfg.Clock.NewTimer(lookAgain)
	defer timer.Stop()
	for {
		affected, events, wait := c.due(c.cfg.Clock.Now())
		for _, e := range events {
			e.record(ctx, c.cfg.Events)
		}
		for _, uid := range affected {
			c.cfg.Changed(uid)
		}
		timer.Stop()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
		case <-timer.C():
		}
	}
}

// due returns the pods to be notified now, the events to be recorded, and how long to wait before the next check.
func (c *Certificates) due(now time.Time) (affected []types.UID, events []event, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wait = lookAgain
	for k, h := range c.held {
		if reason, message := h.event(now); reason != "" {
			events = append(events, event{pod: h.pod, reason: reason, message: message})
		}
		if h.notifyAt.IsZero() {
			continue
		}
		if !now.Before(h.notifyAt) {
			affected = append(affected, k.pod)
			h.notifyAt = now.Add(retryMost) // again, when it does not ask
		}
		wait = min(wait, h.notifyAt.Sub(now))
	}
	slices.Sort(affected)
	return slices.Compact(affected), events, wait
}

// signal makes watchTime check everything.
func (c *Certificates) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// event is an event for users; one without a reason is empty.
type event struct {
	pod             *v1.Pod
	reason, message string
}

func (e event) record(ctx context.Context, to Events) {
	if e.reason != "" {
		to.Warning(ctx, e.pod, "", e.reason, e.message)
	}
}

// receive handles the known status of the pending request, and returns the event to be recorded. The caller holds mu.
func (c *Certificates) receive(h *held) event {
	status := c.statuses[h.pending.name]
	if status == nil || !h.receive(status, c.cfg.Jitter()) || h.refusal == nil {
		return event{}
	}
	r := h.refusal
	reason, did := certificatesv1.PodCertificateRequestConditionTypeDenied, "was denied"
	if r.state == Failed {
		reason, did = certificatesv1.PodCertificateRequestConditionTypeFailed, "failed"
	}
	return event{
		pod: h.pod, reason: reason,
		message: fmt.Sprintf("PodCertificateRequest %s %s, reason=%q, message=%q", r.name, did, r.reason, r.message),
	}
}

// follower handles the requests of the watch.
type follower struct {
	c *Certificates
	// ctx is the context of Run, for recording events.
	ctx context.Context //nolint:containedctx // it lives as long as Run
}

// named returns "NAMESPACE/NAME" of a request and its status; nil if the object is not a request.
func named(object runtime.Object) (string, *certificatesv1.PodCertificateRequestStatus) {
	r, ok := object.(*certificatesv1.PodCertificateRequest)
	if !ok {
		return "", nil
	}
	return r.Namespace + "/" + r.Name, &r.Status
}

// Listed implements reflector.Handler. A request of before the question that is not there is gone.
func (f follower) Listed(objects []runtime.Object, requestedAt time.Time) {
	f.note(func() (gone func(*request) bool) {
		clear(f.c.statuses)
		for _, object := range objects {
			if name, status := named(object); status != nil {
				f.c.statuses[name] = status
			}
		}
		return func(r *request) bool { return f.c.statuses[r.name] == nil && r.made.Before(requestedAt) }
	})
}

// Changed implements reflector.Handler.
func (f follower) Changed(object runtime.Object) {
	f.note(func() func(*request) bool {
		if name, status := named(object); status != nil {
			f.c.statuses[name] = status
		}
		return nil
	})
}

// Deleted implements reflector.Handler.
func (f follower) Deleted(object runtime.Object) {
	f.note(func() func(*request) bool {
		name, _ := named(object)
		delete(f.c.statuses, name)
		return func(r *request) bool { return r.name == name }
	})
}

// ListFailed implements reflector.Handler. It is a no-op, because a waiting caller already has an error about its
// request.
func (f follower) ListFailed(error) {}

// note calls change to update the known requests; change returns a function that reports which requests are gone, or
// nil. note tells the affected pods.
func (f follower) note(change func() (gone func(*request) bool)) {
	c := f.c
	c.mu.Lock()
	gone := change()
	var affected []types.UID
	var events []event
	for k, h := range c.held {
		if h.pending == nil {
			continue
		}
		pending := h.pending
		events = append(events, c.receive(h))
		if h.pending == pending && gone != nil && gone(pending) {
			h.putOff(c.cfg.Clock.Now())
		}
		if h.pending != pending {
			affected = append(affected, k.pod)
		}
	}
	c.mu.Unlock()
	for _, e := range events {
		e.record(f.ctx, c.cfg.Events)
	}
	for _, uid := range affected {
		c.cfg.Changed(uid)
	}
	c.signal()
}

var _ reflector.Handler = follower{}
