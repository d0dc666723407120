package relist

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// Overdue is the duration of an inspection after which the pod's state is published as unknown.
const Overdue = overdue

// Settle bounds the wait of a relist for its inspections.
const Settle = settle

// ErrNotRecorded is the error of a recorded runtime for a call that is not in the recording.
var ErrNotRecorded = errors.New("the call is not in the recording")

// Replay is a Relister that does not run: it lists and inspects when it is told to, against a recorded runtime, and
// decides and publishes as one that runs. It is used by one goroutine. The Clock and the BootTime of its Config are
// those of the recording, and its Journal is nil.
type Replay struct{ r *Relister }

// NewReplay returns a Replay whose first relist has finished, with an empty record.
func NewReplay(cfg Config) *Replay {
	r := New(cfg)
	r.beginRound(cfg.Clock.Now())
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
	known, status := p.r.pod(uid), proto.CloneOf(status)
	if status.GetInspectError() == "" {
		known.record, _ = record.Pod{}.Observe(status)
		return
	}
	known.record, _ = record.Pod{}.Fail(status, status.GetInspectError())
	known.failure = status.GetInspectError()
}

// Inspect inspects a pod. It fails with ErrNotRecorded, and then changes nothing; another error is recorded as that of
// a Relister that runs.
func (p *Replay) Inspect(
	ctx context.Context, runtime internalapi.RuntimeService, uid string, began time.Time, boot time.Duration,
) error {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	pod := p.r.pod(uid)
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

// List lists everything, and requests the inspections of pods that differ from the record. adopt is to be called when
// the relist would not wait for them any longer. It fails if a list does.
func (p *Replay) List(ctx context.Context, runtime internalapi.RuntimeService) (adopt func(), err error) {
	p.r.runtime = runtime
	began, boot := p.r.cfg.Clock.Now(), p.r.cfg.BootTime()
	p.r.beginRound(began)
	all, err := p.r.listAll(ctx)
	if err != nil {
		return nil, err
	}
	p.r.inspectChanged(all)
	p.r.finishRound(began, boot)
	return func() { p.r.adopt(all) }, nil
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
