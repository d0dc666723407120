package podview

import (
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// annotationStarted is on every sandbox of a pod except its first one: the creation time of the first, as RFC 3339 with
// nanoseconds. The first one may have been removed.
const annotationStarted = "quartet.dev/pod-started"

// Started returns the creation time of a pod's first sandbox; zero if it has none.
func Started(status *lifecyclev1.PodStatus) time.Time {
	var first time.Time
	for _, s := range status.GetSandboxes() {
		began := Time(s.GetCreatedAt())
		// An invalid value was written by another program.
		if kept, err := time.Parse(time.RFC3339Nano, s.GetAnnotations()[annotationStarted]); err == nil &&
			(began.IsZero() || kept.Before(began)) {
			began = kept
		}
		if !began.IsZero() && (first.IsZero() || began.Before(first)) {
			first = began
		}
	}
	return first
}

// KeepStart sets the annotation of a new sandbox to the start of the pod, if it had a sandbox before. It overrides the
// pod's own annotation.
func KeepStart(annotations map[string]string, status *lifecyclev1.PodStatus) {
	delete(annotations, annotationStarted)
	if first := Started(status); !first.IsZero() {
		annotations[annotationStarted] = first.Format(time.RFC3339Nano)
	}
}
