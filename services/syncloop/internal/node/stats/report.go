package stats

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Report is one reading: a Summary, and where that is from which it says. It is shared, and only to be read.
type Report struct {
	*statsv1alpha1.Summary
	// Machine is the machine as it was then.
	Machine Machine
	// PodsCgroup is the cgroup that all pods are in; empty when they have none of their own.
	PodsCgroup string
	// Places has those of the Summary's pods.
	Places map[types.UID]Place
}

// Place is where a pod is.
type Place struct {
	// Cgroup is its cgroup; empty when it has none.
	Cgroup string
	// Sandbox is the runtime's ID of its sandbox.
	Sandbox string
	// Containers has the containers that run, by name.
	Containers map[string]ContainerPlace
}

// ContainerPlace is where a container is.
type ContainerPlace struct {
	// Cgroup is its cgroup; empty when that was not found.
	Cgroup string
	// ID is the runtime's, Image the image as the pod's spec names it.
	ID, Image string
}

// Report says what is used as Summary does, and where.
func (s *Stats) Report(ctx context.Context) (*Report, error) { return s.report.get(ctx, maxAge, nil) }

// Summary says what is used, some seconds old at most: each part has the time at which it was read. A part that could not be read is
// nil. It is shared, and only to be read. It fails with the error of ctx, and when it is not known yet which pods there are.
func (s *Stats) Summary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	report, err := s.Report(ctx)
	if err != nil {
		return nil, err
	}
	return report.Summary, nil
}
