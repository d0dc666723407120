package decide

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

// resize has a running container changed to what is allocated to it, or made again where its resize policy asks for that.
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

// madeAgain says whether a container was killed, or is about to be, to have other resources.
func (d *decision) madeAgain(c *v1.Container, latest *lifecyclev1.Container) bool {
	return slices.Contains(d.resized, c.Name) || d.replaced(latest) && !podlabels.Changed(c, latest.GetAnnotations())
}

// replaced says whether a container was killed so that another one takes its place.
func (d *decision) replaced(c *lifecyclev1.Container) bool {
	return d.facts.Replaced != nil && d.facts.Replaced(c.GetId())
}

// resizePod has the pod's cgroup changed with its containers. That is also looked at when a container of a resized pod is started: what
// is allocated to it may have changed since the cgroup was.
func (d *decision) resizePod() {
	if d.CreateSandbox || d.SandboxID == "" || d.pod.DeletionTimestamp != nil || d.StopAll {
		return
	}
	d.Resize.Pod = d.facts.Resized && len(d.Start) > 0 ||
		d.facts.Actuated.OfPod(d.pod, d.status) != resize.OfPod(d.pod.Spec.Resources)
}
