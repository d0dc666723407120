package podview

import (
	"time"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// annotationStarted is on every sandbox of a pod but its first one: when the first was made, as RFC 3339 with nanoseconds.
// The first one itself may have been removed.
const annotationStarted = "quartet.dev/pod-started"

// Started is when the first sandbox of a pod was made; the zero time when it has none.
func Started(status *lifecyclev1.PodStatus) time.Time {
	var first time.Time
	for _, s := range status.GetSandboxes() {
		began := Time(s.GetCreatedAt())
		// What cannot be read is not ours.
		if kept, err := time.Parse(time.RFC3339Nano, s.GetAnnotations()[annotationStarted]); err == nil && (began.IsZero() || kept.Before(began)) {
			began = kept
		}
		if !began.IsZero() && (first.IsZero() || began.Before(first)) {
			first = began
		}
	}
	return first
}

// KeepStart writes into the annotations of a new sandbox when the pod began, if it had a sandbox before. What the pod
// itself says there does not count.
func KeepStart(annotations map[string]string, status *lifecyclev1.PodStatus) {
	delete(annotations, annotationStarted)
	if first := Started(status); !first.IsZero() {
		annotations[annotationStarted] = first.Format(time.RFC3339Nano)
	}
}
