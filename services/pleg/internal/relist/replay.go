package relist

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// Overdue is the duration of an inspection after which the pod's state is published as unknown.
const Overdue = overdue

// Slow is the duration of an inspection after which a relist does not wait for it.
const Slow = slow

const (
	// Settle bounds the wait of a relist for its inspections.
	Settle = settle
	// FirstSettle bounds that of the first relist.
	FirstSettle = firstSettle
)

// ErrNotRecorded is the error of a recorded runtime for a call that is not in the recording.
var ErrNotRecorded = errors.New("the call is not in the recording")

// Replay is a Relister that does not run: it lists and inspects when it is told to, against a recorded runtime, and
// decides and publishes as one that runs. It is used by one goroutine. The Clock and the BootTime of its Config are
// those of the recording, and its Journal is nil.
type Replay struct {
	r *Relister
	// before is true while a pod that is observed for the first time may have come before this process, see
	// Relister.sinceBefore.
	before bool
}

// NewReplay returns a Replay whose first relist has finished, with an empty record.
func NewReplay(cfg Config) *Replay {
	r := New(cfg)
	r.beginRound(cfg.Clock.Now(), cfg.BootTime())
	r.finishRound(cfg.Clock.Now(), cfg.BootTime())
	return &Replay{r: r}
}

// Hints returns the receiver of hints by events of the runtime.
func (p *Replay) Hints() *Relister { return p.r }

// Know sets the record of a pod to a published status, without an event; nil forgets the pod.
func (p *Replay) Know(uid string, status *lifecyclev1.PodStatus) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	delete(p.r.pods, uid)
	if status == nil {
		return
	}
	known := p.r.pod(uid)
	known.record, known.failure = recordOf(status), status.GetInspectError()
}

// recordOf returns the record of a pod with a published status.
func recordOf(status *lifecyclev1.PodStatus) record.Pod {
	status = proto.CloneOf(status)
	if reason := status.GetInspectError(); reason != "" {
		failed, _ := record.Pod{}.Fail(status, reason)
		return failed
	}
	observed, _ := record.Pod{}.Observe(status)
	return observed
}

// Restore sets the record of a pod to a recorded one, without an event.
func (p *Replay) Restore(recorded *debugv1.PLEGRecordPod) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	delete(p.r.pods, recorded.GetUid())
	known := p.r.pod(recorded.GetUid())
	known.record = record.FromRecorded(recorded)
	if recorded.GetFailed() {
		known.failure = cmp.Or(known.record.Status.GetInspectError(), "the error is not recorded")
	}
}

// SetBefore says whether the first relist of a process that has restored the record has not finished yet.
func (p *Replay) SetBefore(before bool) { p.before = before }

// Inspect inspects a pod. It fails with ErrNotRecorded, and then changes nothing; another error is recorded as that of
// a Relister that runs.
func (p *Replay) Inspect(
	ctx context.Context, runtime internalapi.RuntimeService, uid string, began time.Time, boot time.Duration,
) error {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	pod := p.r.pod(uid)
	if p.before && pod.record.Status == nil && !pod.record.Restored() {
		pod.record = record.Restore(record.Published{})
	}
	var known *lifecyclev1.PodStatus
	if pod.record.Inspected() {
		known = pod.record.Status
	}
	seen, err := inspection.Pod(ctx, runtime, uid, boot, began, known)
	if errors.Is(err, ErrNotRecorded) {
		return err
	}
	pod.next = nil
	if _, err := p.r.land(uid, pod, seen, err, began); err == nil && pod.record.Gone() {
		delete(p.r.pods, uid)
	}
	return nil
}

// Late publishes that the inspection of a pod that began at a time is overdue.
func (p *Replay) Late(uid string, began time.Time) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if pod := p.r.pod(uid); pod.failure == "" {
		p.r.failLate(uid, pod, began)
	}
}

// Listed is a list of everything, whose relist waits for the inspections that it has requested.
type Listed struct {
	r     *Relister
	all   map[string]*items
	asked map[string]*pod
	next  map[string]*flight
}

// List lists everything, and requests the inspections of pods that differ from the record. It fails if a list does.
func (p *Replay) List(ctx context.Context, runtime internalapi.RuntimeService) (*Listed, error) {
	p.r.runtime = runtime
	began, boot := p.r.cfg.Clock.Now(), p.r.cfg.BootTime()
	p.r.beginRound(began, boot)
	all, err := p.r.listAll(ctx)
	if err != nil {
		return nil, err
	}
	p.r.inspectChanged(all)
	p.r.finishRound(began, boot)
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	l := &Listed{r: p.r, all: all, asked: map[string]*pod{}, next: map[string]*flight{}}
	for uid, pod := range p.r.pods {
		if pod.next != nil {
			l.asked[uid], l.next[uid] = pod, pod.next
		}
	}
	return l, nil
}

// Leave says that the running inspection of a pod is slow: the relist does not wait for the pod.
func (l *Listed) Leave(uid string) { delete(l.next, uid) }

// Waits reports whether a requested inspection has not taken place.
func (l *Listed) Waits() bool {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	for uid, next := range l.next {
		if pod := l.r.pods[uid]; pod != nil && pod.next == next {
			return true
		}
	}
	return false
}

// Adopt ends the wait. It adopts only pods for which this list has asked: one that has gone and come back since is
// another.
func (l *Listed) Adopt() {
	l.r.mu.Lock()
	maps.DeleteFunc(l.all, func(uid string, _ *items) bool {
		return l.asked[uid] == nil || l.r.pods[uid] != l.asked[uid]
	})
	l.r.mu.Unlock()
	l.r.adopt(l.all)
}

// Wanted returns the pods whose inspection was requested and has not taken place, sorted.
func (p *Replay) Wanted() []string {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	var wanted []string
	for _, uid := range slices.Sorted(maps.Keys(p.r.pods)) {
		if p.r.pods[uid].next != nil {
			wanted = append(wanted, uid)
		}
	}
	return wanted
}

// Forgo takes back the request of an inspection.
func (p *Replay) Forgo(uid string) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if pod := p.r.pods[uid]; pod != nil {
		pod.next = nil
	}
}
