package podworkers

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// CauseKind says why a worker has something to do.
type CauseKind int

// The kinds of cause. The greater one wins when two fold.
const (
	// CauseDue: a time has come, for a retry or for the regular look.
	CauseDue CauseKind = iota
	// CauseSeen: pleg has seen the pod change. It may be the echo of the worker's own write.
	CauseSeen
	// CauseProbe: a probe of the pod has another result.
	CauseProbe
	// CauseLost: pleg has seen something of the pod end.
	CauseLost
	// CauseConfig: what is wanted of the pod has changed.
	CauseConfig
)

// String returns the kind's name, as spans and logs have it.
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

// Cause is why a worker has something to do, and whose trace that continues.
type Cause struct {
	Kind CauseKind
	// Traceparent is the parent of the work's span; empty when the cause is not traced.
	Traceparent string
	// Also are the traceparents of causes that were folded into this one: the work's span is linked to them.
	Also []string
}

// End asks for the end of a pod.
type End struct {
	// Removed is true when no source names the pod any more: what it leaves is cleaned up and its worker forgotten.
	Removed bool
	// Grace is how many seconds the containers have to stop; nil takes the pod's own.
	Grace *int64
	// Stopped are closed when nothing of the pod runs any more.
	Stopped []chan<- struct{}
	// own is true when one of several who asked takes the pod's own grace period.
	own bool
}

// Update is what a worker is told.
type Update struct {
	// Pod is the pod as it is wanted now; nil when that has not changed.
	Pod *v1.Pod
	// Cause is why.
	Cause Cause
	// End asks for the pod's end; nil when nobody does.
	End *End
	// told is when the first of the folded updates was given.
	told time.Time
	// behind is the pod whose end was waited for before the first piece of work; empty for none.
	behind types.UID
}

// Fold joins two updates that have not been acted on, the second being the newer. The newest pod counts and the most
// pressing cause; a request to end is never lost, nor is the shortest grace period, nor anyone who waits.
func Fold(older, newer Update) Update {
	out := older
	if newer.Pod != nil {
		out.Pod = newer.Pod
	}
	out.Cause = foldCause(older.Cause, newer.Cause)
	out.End = foldEnd(older.End, newer.End)
	if out.told.IsZero() {
		out.told = newer.told
	}
	return out
}

// foldCause returns the more pressing cause, the newer one of two that press as much. What pleg saw end and what a probe has found
// is not lost: each of several crashes leads to the work that follows them.
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

// shorter returns the shorter of two grace periods; nil is none.
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
	// minGrace keeps a pod from being killed without having been asked to stop: the kubelet's lower bound.
	minGrace = 1
)

// GraceOf returns how many seconds the containers of a pod have to stop: the shortest of what was asked for. Who asks for
// nothing else takes the pod's own: its deletion grace period, or, when it is not being deleted, the one of its spec.
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
	asked := shorter(end.Grace, pod.DeletionGracePeriodSeconds)
	if end.own {
		asked = shorter(asked, own)
	}
	return max(*asked, minGrace)
}
