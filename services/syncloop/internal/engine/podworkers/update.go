package podworkers

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// CauseKind is the kind of a cause for work.
type CauseKind int

// The kinds of causes. When two are folded, the greater one wins.
const (
	// CauseDue: a retry or a periodic sync is due.
	CauseDue CauseKind = iota
	// CauseSeen: pleg has observed a change of the pod. It may be the result of the worker's own write.
	CauseSeen
	// CauseProbe: a probe of the pod has another result.
	CauseProbe
	// CauseLost: pleg has observed the end of a container or sandbox of the pod.
	CauseLost
	// CauseConfig: the desired pod has changed.
	CauseConfig
)

// String returns the kind's name in spans and logs.
func (k CauseKind) String() string {
	switch k {
	case CauseDue:
		return "due"
	case CauseSeen:
		return "seen"
	case CauseProbe:
		return "probe"
	case CauseLost:
		return "lost"
	case CauseConfig:
		return "config"
	default:
		return "unknown"
	}
}

// Cause is a cause for work, with its trace.
type Cause struct {
	Kind CauseKind
	// Traceparent is the parent of the work's span; empty if the cause has no trace.
	Traceparent string
	// Also are the traceparents of causes that were folded into this one. The work's span is linked to them.
	Also []string
}

// End requests the end of a pod.
type End struct {
	// Removed is true if no source names the pod any more. Then the pod is cleaned up and its worker ends.
	Removed bool
	// Grace is the grace period in seconds; nil for that of the pod.
	Grace *int64
	// Stopped are closed when nothing of the pod runs any more.
	Stopped []chan<- struct{}
	// own is true if one of the folded requests has the pod's own grace period.
	own bool
}

// Update is what the loop gives a worker.
type Update struct {
	// Pod is the new desired pod; nil if it has not changed.
	Pod *v1.Pod
	// Cause is the cause of the update.
	Cause Cause
	// End requests the end of the pod; nil if it is not requested.
	End *End
	// requestedAt is the time of the first of the folded updates.
	requestedAt time.Time
	// behind is the pod whose end this one waited for before its first work; empty if it did not wait.
	behind types.UID
}

// Fold joins two updates that have not been handled; newer is the later one. The newest pod and the most urgent cause
// win. A requested end, the shortest grace period and the channels of End.Stopped are never lost.
func Fold(older, newer Update) Update {
	out := older
	if newer.Pod != nil {
		out.Pod = newer.Pod
	}
	out.Cause = foldCause(older.Cause, newer.Cause)
	out.End = foldEnd(older.End, newer.End)
	if out.requestedAt.IsZero() {
		out.requestedAt = newer.requestedAt
	}
	return out
}

// foldCause returns the more urgent cause, or the newer one of two equal ones. The traces of ended containers and of
// probe results stay as links, so that each of several crashes leads to the work that follows them.
func foldCause(older, newer Cause) Cause {
	wins, loses := newer, older
	if older.Kind > newer.Kind {
		wins, loses = older, newer
	}
	also := slices.Concat(older.Also, newer.Also)
	if loses.Kind >= CauseProbe && loses.Traceparent != wins.Traceparent {
		also = withTraceparent(also, loses.Traceparent)
	}
	wins.Also = also[max(0, len(also)-maxOpen):]
	return wins
}

func foldEnd(older, newer *End) *End {
	switch {
	case older == nil:
		return newer
	case newer == nil:
		return older
	}
	return &End{
		Removed: older.Removed || newer.Removed,
		Grace:   shorter(older.Grace, newer.Grace),
		Stopped: slices.Concat(older.Stopped, newer.Stopped),
		own:     older.asksOwn() || newer.asksOwn(),
	}
}

func (e *End) asksOwn() bool { return e.own || e.Grace == nil }

// shorter returns the shorter of two grace periods; nil is no grace period.
func shorter(a, b *int64) *int64 {
	switch {
	case a == nil:
		return b
	case b == nil || *a <= *b:
		return a
	default:
		return b
	}
}

const (
	// minGrace gives every container the chance to stop by itself. It is the kubelet's lower bound.
	minGrace = 1
)

// GraceOf returns the grace period of a pod's containers in seconds: the shortest of the requested ones. A request
// without one takes that of the pod, which is its deletion grace period if it is being deleted, and otherwise that of
// its spec.
func GraceOf(pod *v1.Pod, end *End) int64 {
	own := pod.DeletionGracePeriodSeconds
	if own == nil {
		own = pod.Spec.TerminationGracePeriodSeconds
	}
	if own == nil {
		own = ptr.To[int64](v1.DefaultTerminationGracePeriodSeconds)
	}
	if end == nil || end.Grace == nil {
		return max(*own, minGrace)
	}
	requested := shorter(end.Grace, pod.DeletionGracePeriodSeconds)
	if end.own {
		requested = shorter(requested, own)
	}
	return max(*requested, minGrace)
}
