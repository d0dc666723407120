package show

import (
	"context"
	"errors"
	"slices"

	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// Located is what a running node knows of one pod.
type Located struct {
	Namespace, Name, UID string
	// Status is what pleg observed; nil when pleg is away or has not seen the pod.
	Status *lifecyclev1.PodStatus
}

// NoPodError says that the node is there and has no such pod.
type NoPodError struct{ cause error }

// Error implements error; it lists the pods that there are.
func (e *NoPodError) Error() string { return e.cause.Error() }

// Locate finds a pod of the node of a state directory by the name that a person gives, as every command takes it: NAME or
// NAMESPACE/NAME, where NAME may be the one in the manifest, without the node's, or the UID. It asks pleg and syncloop, and is content
// with one of them. It fails with a NoPodError, or with why neither answers.
func Locate(ctx context.Context, stateDir, namespace, name string) (Located, error) {
	a := &asker{clock: clock.RealClock{}, stateDir: stateDir}
	s := selection{namespace: namespace, names: []string{name}}
	if err := s.check(); err != nil {
		return Located{}, err
	}
	statuses, err := a.listStatuses(ctx)
	pods, podsErr := a.listPods(ctx)
	if err != nil && podsErr != nil {
		return Located{}, err
	}
	pod, observed, noPod := findPod(s, pods, statuses)
	switch {
	case noPod != nil && errors.Join(err, podsErr) != nil:
		// One of the two may know it.
		return Located{}, errors.Join(noPod, err, podsErr)
	case noPod != nil:
		return Located{}, &NoPodError{noPod}
	case pod != nil:
		return Located{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Status: observed}, nil
	default:
		return Located{Namespace: observed.GetNamespace(), Name: observed.GetName(), UID: observed.GetUid(), Status: observed}, nil
	}
}

// nodeOf is the name of the node that pods are on; this machine's when there are none.
func nodeOf(pods []podView) string {
	if i := slices.IndexFunc(pods, func(v podView) bool { return v.pod.Spec.NodeName != "" }); i >= 0 {
		return pods[i].pod.Spec.NodeName
	}
	return hostname()
}
