package stats

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Report is one measurement: a Summary, and the cgroups and IDs of what it describes. It is shared and must not be
// modified.
type Report struct {
	*statsv1alpha1.Summary
	// Machine is the state of the machine at that time.
	Machine Machine
	// PodsCgroup is the cgroup of all pods; empty if pods have no cgroups.
	PodsCgroup string
	// Places has an entry for each pod of the Summary.
	Places map[types.UID]Place
}

// Place is the cgroup of a pod and the IDs of its sandbox and containers.
type Place struct {
	// Cgroup is the pod's cgroup; empty if it has none.
	Cgroup string
	// Sandbox is the runtime's ID of the sandbox.
	Sandbox string
	// Containers has the running containers by name.
	Containers map[string]ContainerPlace
}

// ContainerPlace is the cgroup, ID and image of a container.
type ContainerPlace struct {
	// Cgroup is the container's cgroup; empty if it was not found.
	Cgroup string
	// ID is the runtime's ID, and Image the image as it is named in the spec of the pod.
	ID, Image string
}

// Report returns the usage as Summary does, with cgroups and IDs.
func (s *Stats) Report(ctx context.Context) (*Report, error) { return s.report.get(ctx, maxAge, nil) }

// Summary returns the current usage. It is at most some seconds old; each part has the time of its measurement. A part
// that could not be read is nil. The Summary is shared and must not be modified. Summary returns the error of ctx, and
// an error while the pods are not known.
func (s *Stats) Summary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	report, err := s.Report(ctx)
	if err != nil {
		return nil, err
	}
	return report.Summary, nil
}
