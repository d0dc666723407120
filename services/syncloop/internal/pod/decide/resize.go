package decide

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// resize changes a running container to its allocated resources, or recreates it if its resize policy asks for that.
func (d *decision) resize(c *v1.Container, running *lifecyclev1.Container) {
	has, known := d.facts.Actuated.Of(running)
	wants := resize.AmountsOf(d.pod.Spec.Resources, c.Resources)
	if !known || has == wants {
		return
	}
	if KindOf(d.pod, c.Name) == Init || !resize.NeedsRestart(c, wants, has) {
		d.Resize.Add(resize.Update{Container: c, ID: running.GetId(), Wants: wants, Has: has})
		return
	}
	d.resized = append(d.resized, c.Name)
	d.kill(running, Resized, fmt.Sprintf("Container %s resize requires restart", c.Name))
	d.start(c)
}

// madeAgain reports whether a container was killed, or is about to be, to get other resources, or with an earlier life
// of the pod.
func (d *decision) madeAgain(c *v1.Container, latest *lifecyclev1.Container) bool {
	return slices.Contains(d.resized, c.Name) || d.replaced(latest) && !podlabels.Changed(c, latest.GetAnnotations())
}

// replaced reports whether a container was killed to be replaced by another one.
func (d *decision) replaced(c *lifecyclev1.Container) bool {
	return d.facts.Replaced != nil && d.facts.Replaced(c.GetId())
}

// resizePod changes the pod's cgroup. It also does so when a container of a resized pod starts, because its allocation
// may have changed since the last change of the cgroup.
func (d *decision) resizePod() {
	if d.CreateSandbox || d.SandboxID == "" || d.pod.DeletionTimestamp != nil || d.StopAll {
		return
	}
	d.Resize.Pod = d.facts.Actuated.Unfinished || d.facts.Resized && len(d.Start) > 0 ||
		d.facts.Actuated.OfPod(d.pod, d.status) != resize.OfPod(d.pod.Spec.Resources)
}
