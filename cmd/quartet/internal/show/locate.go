package show

import (
	"context"
	"errors"
	"slices"

	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
)

// Located is a pod as the running node knows it.
type Located struct {
	Namespace, Name, UID string
	// Status is pleg's status; nil if pleg is unreachable or has not observed the pod.
	Status *lifecyclev1.PodStatus
}

// NoPodError is returned if the node has no such pod.
type NoPodError struct{ cause error }

// Error implements error; it lists the existing pods.
func (e *NoPodError) Error() string { return e.cause.Error() }

// Locate finds a pod of a node by its name on the command line: NAME or NAMESPACE/NAME, where NAME may be without the
// node's suffix, or the UID. It queries pleg and syncloop, one of which is enough. It fails with a NoPodError, or with
// why neither answers.
func Locate(ctx context.Context, node target.Node, namespace, name string) (Located, error) {
	a := &querier{clock: clock.RealClock{}, node: node}
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
		// One of the two services may know the pod.
		return Located{}, errors.Join(noPod, err, podsErr)
	case noPod != nil:
		return Located{}, &NoPodError{noPod}
	case pod != nil:
		return Located{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Status: observed}, nil
	default:
		return Located{
			Namespace: observed.GetNamespace(),
			Name:      observed.GetName(),
			UID:       observed.GetUid(),
			Status:    observed,
		}, nil
	}
}

// nodeOf returns the node's name of pods, or that of this machine without pods.
func nodeOf(pods []podView) string {
	if i := slices.IndexFunc(pods, func(v podView) bool { return v.pod.Spec.NodeName != "" }); i >= 0 {
		return pods[i].pod.Spec.NodeName
	}
	return hostname()
}
