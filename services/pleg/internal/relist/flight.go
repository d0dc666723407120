package relist

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// pod is a recorded pod, or one that is about to be inspected.
type pod struct {
	record record.Pod
	// running is the present inspection, and next the one that was requested since it began. There is never a third: all
	// requests during an inspection share the next.
	running, next *flight
	// urgent is true while a caller waits for next. It is then queued as urgent, or will be when running has ended.
	urgent bool
	// slow is true if the last inspection took longer than slow, or has been running for that long.
	slow bool
	// failure is the error of the last inspection; empty if it succeeded.
	failure string
	// shown is true if the pod is part of the snapshot for new subscribers.
	shown bool
	// unseen is true for a pod that existed before the end of the first relist and has not been inspected since: its
	// changes may have been published by the previous process.
	unseen bool
	// traceparent is the traceparent of the pod's last event.
	traceparent string
	// matched is the start of the last full list that equals the record; for an unrecorded pod, the last one without the
	// pod.
	matched moment
	// hinted holds the events about the pod.
	hinted hinted
}

// flight is one inspection of one pod.
type flight struct {
	// began is the boot time before its first call.
	began time.Duration
	// slow is true when it has been running so long that it does not count towards the limit of parallel inspections.
	slow bool
	// done is closed when its result is recorded; status and err may be read then.
	done   chan struct{}
	status *lifecyclev1.PodStatus
	err    error
}

// Status returns the state of a pod from an inspection that began after newerThan in boot time; 0 accepts the record. A
// pod that the runtime does not have has an empty status. It fails with ErrNotSynced, ErrFuture, ErrStopped, the error
// of ctx, or the error of the inspection.
func (r *Relister) Status(ctx context.Context, uid string, newerThan time.Duration) (*lifecyclev1.PodStatus, error) {
	select {
	case <-r.synced:
	default:
		return nil, errors.Join(ErrNotSynced, r.Progress().Err)
	}
	f, status, err := r.statusOrFlight(uid, newerThan)
	if f == nil {
		return status, err
	}
	select {
	case <-f.done:
		return f.status, f.err
	case <-r.stopped:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the inspection of the pod: %w", ctx.Err())
	}
}

func (r *Relister) statusOrFlight(uid string, newerThan time.Duration) (*flight, *lifecyclev1.PodStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[uid]
	known := p != nil && p.record.Status != nil
	switch {
	case newerThan == 0 && known:
		return nil, p.record.Status, nil
	case newerThan == 0:
		return nil, &lifecyclev1.PodStatus{Uid: uid}, nil
	case known && p.record.Inspected() && p.record.Status.GetObservedBoottimeNs() > int64(newerThan):
		return nil, p.record.Status, nil
	case newerThan > r.cfg.BootTime():
		return nil, nil, ErrFuture
	case p != nil && p.running != nil && p.running.began > newerThan:
		return p.running, nil, nil
	}
	return r.request(uid, true), nil, nil
}

// List returns the recorded status of all pods, sorted by UID. It fails with ErrNotSynced.
func (r *Relister) List() ([]*lifecyclev1.PodStatus, error) {
	select {
	case <-r.synced:
	default:
		return nil, errors.Join(ErrNotSynced, r.Progress().Err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*lifecyclev1.PodStatus
	for _, uid := range slices.Sorted(maps.Keys(r.pods)) {
		if rec := r.pods[uid].record; rec.Status != nil && !rec.Gone() {
			all = append(all, rec.Status)
		}
	}
	return all, nil
}

// request requests an inspection that begins after now. An urgent one, for which a caller waits, precedes the others.
// The caller holds mu.
func (r *Relister) request(uid string, urgent bool) *flight {
	p := r.pod(uid)
	queued := p.next != nil
	if !queued {
		p.next = &flight{done: make(chan struct{})}
	}
	switch {
	case p.running != nil:
		// It is queued when the running one ends.
		p.urgent = p.urgent || urgent
	case urgent && !p.urgent:
		p.urgent = true
		r.lanes.forPod(p).add(uid, true)
	case !queued:
		r.lanes.forPod(p).add(uid, false)
	}
	f := p.next
	r.pump()
	return f
}

// pump starts queued inspections up to the limit. The caller holds mu.
func (r *Relister) pump() {
	if r.ctx == nil || r.closed {
		return
	}
	for _, lane := range []*lane{&r.lanes.quick, &r.lanes.slow} {
		for uid, ok := lane.next(); ok; uid, ok = lane.next() {
			// It may have been queued twice and already started.
			if p := r.pods[uid]; p != nil && p.next != nil && p.running == nil {
				r.begin(uid, p, lane)
			}
		}
	}
}

// begin starts the next inspection of a pod. The caller holds mu.
func (r *Relister) begin(uid string, p *pod, lane *lane) {
	f := p.next
	p.running, p.next, p.urgent = f, nil, false
	f.began = r.cfg.BootTime()
	lane.active++
	var known *lifecyclev1.PodStatus
	if p.record.Inspected() {
		known = p.record.Status
	}
	r.flights.Go(func() { r.fly(uid, f, lane, known) })
}

// fly executes one inspection and records its result.
func (r *Relister) fly(uid string, f *flight, lane *lane, known *lifecyclev1.PodStatus) {
	var once sync.Once
	leave := func() { once.Do(func() { lane.active--; r.pump() }) }
	slowly := time.AfterFunc(slow, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		f.slow = true
		if p := r.pods[uid]; p != nil {
			p.slow = true
		}
		leave()
	})
	began := r.cfg.Clock.Now()
	late := time.AfterFunc(overdue, func() { r.late(uid, f, began) })
	ctx, cancel := context.WithTimeout(r.ctx, r.callTimeout())
	seen, err := inspection.Pod(ctx, r.runtime, uid, f.began, began, known)
	cancel()
	slowly.Stop()
	late.Stop()

	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pods[uid]
	if r.ctx.Err() == nil {
		r.cfg.Metrics.inspected(r.cfg.Clock.Since(began), err)
	}
	if r.ctx.Err() != nil {
		f.err = ErrStopped
	} else {
		f.status, f.err = r.land(uid, p, seen, err, began)
	}
	p.running, p.slow = nil, f.slow
	close(f.done)
	if p.next != nil {
		r.lanes.forPod(p).add(uid, p.urgent)
	} else if p.record.Gone() && p.failure == "" {
		delete(r.pods, uid)
	}
	leave()
	r.pump()
}

// land records the result of an inspection that began at a time. The caller holds mu.
func (r *Relister) land(
	uid string, p *pod, seen *lifecyclev1.PodStatus, err error, began time.Time,
) (*lifecyclev1.PodStatus, error) {
	if err != nil {
		p.failure = err.Error()
		r.fail(uid, p, seen, p.failure, began)
		return nil, err
	}
	p.failure = ""
	return r.commit(uid, p, seen), nil
}

// late publishes that a pod's state is unknown while its inspection, which began at a time, still runs.
func (r *Relister) late(uid string, f *flight, began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pods[uid]; p != nil && p.running == f && p.failure == "" && r.ctx.Err() == nil {
		r.failLate(uid, p, began)
	}
}

// failLate records that the inspection of a pod has not ended within overdue. The caller holds mu.
func (r *Relister) failLate(uid string, p *pod, began time.Time) {
	r.fail(uid, p, nil, fmt.Sprintf("the runtime has not answered for %v when asked for the pod", overdue), began)
}

// commit records an observation and publishes the changes. The caller holds mu.
func (r *Relister) commit(uid string, p *pod, seen *lifecyclev1.PodStatus) *lifecyclev1.PodStatus {
	if since := p.record.Status.GetUnknownSince(); since != nil {
		r.cfg.Logger.Info("a pod can be inspected again", telemetry.KeyPodUID, uid,
			"unknown_for", r.cfg.Clock.Since(since.AsTime()))
	}
	r.compare(uid, p, seen)
	r.sinceBefore(p)
	next, changes := p.record.Observe(seen)
	moved, shares := p.record.Moved(next), p.record.Shares(next)
	p.record = next
	r.publish(uid, p, changes, moved)
	if !shares && !moved && len(changes) == 0 {
		r.cfg.Journal.Note(uid, p.record, r.cfg.Events.Token())
	}
	if p.unseen {
		p.unseen = false
		r.unseen--
		r.cfg.Events.Doubt(r.unseen > 0)
	}
	return next.Status
}

// fail records the error of an inspection that began at a time. It publishes an event if the pod's state becomes
// unknown, but not if only the error changes. The caller holds mu.
func (r *Relister) fail(uid string, p *pod, listed *lifecyclev1.PodStatus, reason string, began time.Time) {
	r.sinceBefore(p)
	next, changed := p.record.Fail(listed, reason)
	if !changed {
		return
	}
	p.record = next
	first := next.Status.GetUnknownSince() == nil
	if first {
		next.Status.UnknownSince = timestamppb.New(began) // the status is not shared yet
	}
	r.cfg.Logger.Warn("a pod could not be inspected, trying again", telemetry.KeyPodUID, uid, telemetry.KeyError, reason)
	var changes []record.Change
	if first {
		changes = []record.Change{{Type: lifecyclev1.EventType_EVENT_TYPE_POD_SYNC}}
	}
	r.publish(uid, p, changes, true)
}
