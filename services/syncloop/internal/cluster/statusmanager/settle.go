package statusmanager

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

const (
	// firstRetry is the first back-off. It doubles with each failure up to lastRetry, which is short so that an API server
	// that is back gets all statuses soon.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
	// lastRepeat is the maximum back-off if the API server rejects a request, or accepts it and stores something else, as
	// an older one does that does not know a field.
	lastRepeat = 5 * time.Minute
	// maxDoublings prevents the overflow of a delay.
	maxDoublings = 16
	// retryJitter spreads the retries of pods that failed together.
	retryJitter = 0.2
	// tracedTries is the maximum number of failures of one status in its trace.
	tracedTries = 10
)

// task is one request.
type task struct {
	op      request
	object  object
	version uint64
	patch   []byte
	// status is the status in the API server after the patch.
	status v1.PodStatus
	traced bool
	report podstatus.Report
}

// settle sends the next request for a pod. If the pod needs another one after that, it waits for its turn behind the
// other pods.
func (m *Manager) settle(ctx context.Context, uid types.UID) {
	next, err := m.next(uid)
	if err != nil {
		m.cfg.Logger.ErrorContext(ctx, "the status of a pod cannot be sent", telemetry.KeyPodUID, string(uid),
			telemetry.KeyError, err)
		return
	}
	if next == nil {
		return
	}
	begun := m.cfg.Clock.Now()
	var answer *v1.Pod
	asking, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	asking, span := m.span(asking, next, begun)
	if next.op == requestDelete {
		err = m.cfg.API.Delete(asking, next.object.namespace, next.object.name, next.object.uid)
	} else {
		answer, err = m.cfg.API.PatchStatus(asking, next.object.namespace, next.object.name, next.patch)
	}
	if ctx.Err() != nil && err != nil {
		telemetry.End(span, ctx.Err())
		return
	}
	if !next.traced && err == nil {
		next.traced = true // the final success belongs to the trace
		_, span = m.span(ctx, next, begun)
	}
	telemetry.End(span, err)
	m.settled(ctx, uid, next, answer, err)
}

// next returns the next request for a pod; nil if it needs none now.
func (m *Manager) next(uid types.UID) (*task, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.pods[uid]
	if r == nil || r.object == nil || r.report.Pod == nil || r.object.uid == r.gone {
		return nil, nil
	}
	t := &task{object: *r.object, version: r.version, report: r.report, traced: r.failures < tracedTries}
	has, computed := &r.object.status, r.report.Status
	if r.report.Static {
		computed = ofMirror(computed)
		has = ofAnotherLife(has, computed.Phase)
	}
	t.status = Merge(has, computed, r.report.MayRun)
	var err error
	if t.patch, err = Patch(string(t.object.uid), &t.object.status, &t.status); err != nil {
		return nil, err
	}
	switch still := r.until.Sub(m.cfg.Clock.Now()); {
	case still > 0 && !r.triesAtOnce(t.patch):
		m.queue.AddAfter(uid, still)
		return nil, nil
	case t.patch != nil && (still <= 0 || !bytes.Equal(t.patch, r.left)):
		t.op = requestPatch
		return t, nil
	}
	r.hold(t.version)
	if !r.report.Static && r.object.deleting && r.report.Released && !runs(&r.object.status) {
		t.op = requestDelete
		return t, nil
	}
	return nil, nil
}

// triesAtOnce reports whether a pod does not wait for the end of its back-off. It does not if the API server rejected
// the last patch and the new patch differs. It also does not if the API server drops a part of the status: then it has
// all that it accepts, and the deletion need not wait.
func (r *record) triesAtOnce(patch []byte) bool {
	complaint := failureKind(r.complaint)
	return complaint == ignored || complaint == refused && patch != nil && !bytes.Equal(patch, r.left)
}

// ofMirror returns the status of a static pod as the status of its mirror pod. A static pod has no generation, and the
// node has not observed the mirror pod's.
func ofMirror(status v1.PodStatus) v1.PodStatus {
	status.ObservedGeneration = 0
	conditions := make([]v1.PodCondition, len(status.Conditions))
	for i, c := range status.Conditions {
		c.ObservedGeneration = 0
		conditions[i] = c
	}
	status.Conditions = conditions
	return status
}

// ofAnotherLife returns the status of a mirror pod for the merge with that of its pod. If the static pod had ended and
// runs again, as after a shutdown of the machine, the status of its end is removed.
func ofAnotherLife(has *v1.PodStatus, phase v1.PodPhase) *v1.PodStatus {
	if !hasEnded(has.Phase) || hasEnded(phase) {
		return has
	}
	again := *has
	again.Phase, again.Reason, again.Message, again.StartTime = "", "", "", nil
	again.Conditions = slices.DeleteFunc(slices.Clone(has.Conditions), func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget
	})
	return &again
}

// runs reports whether a container runs according to a status.
func runs(status *v1.PodStatus) bool {
	for _, list := range [][]v1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].State.Running != nil {
				return true
			}
		}
	}
	return false
}

// hold records that the API server has a report. If it is the newest one and new, it returns the time of the first
// report that the API server did not have; otherwise zero.
func (r *record) hold(version uint64) (since time.Time) {
	if r.sent = version; r.version == version {
		since, r.since = r.since, time.Time{}
	}
	return since
}

// settled processes the result of a request, and schedules the next check of the pod.
func (m *Manager) settled(ctx context.Context, uid types.UID, t *task, answer *v1.Pod, failure error) {
	kind := kindOf(t.op, failure)
	m.cfg.Metrics.requested(t.op, string(kind))
	m.mu.Lock()
	r := m.pods[uid]
	if r == nil || r.object == nil || r.object.uid != t.object.uid {
		m.look(uid) // the object has been replaced meanwhile
		m.mu.Unlock()
		return
	}
	previous := r.complaint
	if failure == nil && t.op == requestPatch {
		if failure = m.answered(r, t, answer); failure != nil {
			kind = ignored
		}
	}
	var delay time.Duration
	switch {
	case kind == replaced, kind == taken && t.op == requestDelete:
		r.gone, r.failures, r.until = t.object.uid, 0, time.Time{}
	case failure != nil:
		delay = m.failed(uid, r, t, failure, kind)
	default:
		m.look(uid)
	}
	complains := r.complaint != ""
	m.mu.Unlock()
	switch {
	case kind == taken && t.op == requestDelete:
		m.cfg.Logger.InfoContext(ctx, "the API server has deleted the object of a pod that has ended", subject(t)...)
	case failure != nil && kind != missing && kind != replaced && previous != string(kind):
		// Only the first failure of a kind is logged, because otherwise each pod would log every retry while the API server
		// is down.
		m.cfg.Logger.WarnContext(ctx, "the status of a pod could not be written to the API server; it is retried",
			append(subject(t), telemetry.KeyOp, string(t.op), telemetry.KeyReason, string(kind), telemetry.KeyRetryAfter, delay,
				telemetry.KeyError, failure)...)
	case kind == taken && previous != "" && !complains:
		m.cfg.Logger.InfoContext(ctx, "the API server accepts the status of the pod again", subject(t)...)
	}
}

// answered processes the pod that a patch returned. It returns an error if the patch had no effect, because the same
// patch would not have one either. The caller holds mu.
func (m *Manager) answered(r *record, t *task, answer *v1.Pod) error {
	now, held := m.cfg.Clock.Now(), objectOf(answer)
	held.at, held.deleting = now, held.deleting || r.object.deleting
	r.object = held
	rest, err := Patch(string(held.uid), &held.status, &t.status)
	if err == nil && bytes.Equal(rest, t.patch) {
		return fmt.Errorf("the API server accepted a patch and dropped all of it: %s", rest)
	}
	r.failures, r.until = 0, time.Time{}
	if rest == nil || r.complaint != string(ignored) { // otherwise the API server still drops a part
		r.complaint = ""
	}
	if since := r.hold(t.version); !since.IsZero() {
		m.cfg.Metrics.reached(now.Sub(since))
	}
	return nil
}

// failed schedules the retry of a failed request, and returns its delay. The caller holds mu.
func (m *Manager) failed(uid types.UID, r *record, t *task, failure error, kind failureKind) time.Duration {
	longest := lastRepeat
	r.left = t.patch
	if kind == failed {
		longest, r.left = lastRetry, nil
	}
	delay := min(firstRetry<<min(r.failures, maxDoublings), longest)
	if kind == ignored {
		// A retry would have the same result. Meanwhile the API server has all that it accepts, so other requests, as the
		// deletion, continue.
		delay = longest
		m.look(uid)
	}
	delay = wait.Jitter(delay, retryJitter)
	delay = max(delay, min(suggestedDelay(failure), lastRepeat))
	r.failures++
	r.until, r.complaint = m.cfg.Clock.Now().Add(delay), string(kind)
	m.queue.AddAfter(uid, delay)
	return delay
}

// subject returns the log attributes of the pod.
func subject(t *task) []any {
	return []any{telemetry.KeyPod, t.object.namespace + "/" + t.object.name, telemetry.KeyPodUID, string(t.report.Pod.UID)}
}

// span begins the span of a request in the trace of the change of the status. A request that has failed too often has
// none.
func (m *Manager) span(ctx context.Context, t *task, begun time.Time) (context.Context, trace.Span) {
	if !t.traced {
		return ctx, trace.SpanFromContext(context.Background())
	}
	name := "status.patch"
	if t.op == requestDelete {
		name = "pod.delete"
	}
	ctx, span := telemetry.Start(telemetry.WithTraceparent(ctx, t.report.Traceparent), m.cfg.Tracer, name,
		telemetry.Subject{
			Namespace: t.object.namespace, Pod: t.object.name, UID: string(t.report.Pod.UID),
		}, trace.WithTimestamp(begun))
	if span.IsRecording() && t.op == requestPatch {
		ready := find(t.status.Conditions, v1.PodReady)
		span.SetAttributes(telemetry.AttrPhase.String(string(t.status.Phase)),
			telemetry.AttrReady.Bool(ready != nil && ready.Status == v1.ConditionTrue))
	}
	return ctx, span
}
