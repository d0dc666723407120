package decide

import (
	"fmt"
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// ephemeralContainers starts the ephemeral containers that were never created. They are not restarted, regardless of
// their end, even in a new sandbox.
func (d *decision) ephemeralContainers() {
	for i := range d.pod.Spec.EphemeralContainers {
		e := &d.pod.Spec.EphemeralContainers[i]
		if podview.Latest(d.status, e.Name) == nil {
			c := v1.Container(e.EphemeralContainerCommon)
			s, _, _ := d.restartOf(&c)
			s.Kind, s.Target = Ephemeral, e.TargetContainerName
			d.Start = append(d.Start, s)
		}
	}
}

// beginAgain restarts all containers of the pod in its sandbox if a container has ended with an exit code for which one
// of its rules requires that, and its crash back-off is over; until then the pod continues unchanged. The container
// with the rule is removed last, so that an interrupted removal is continued.
func (d *decision) beginAgain() bool {
	if d.pod.DeletionTimestamp != nil {
		return false
	}
	requesters, step := d.dueRestartAll()
	if len(requesters) == 0 {
		return false
	}
	var last []string
	for _, list := range [][]v1.Container{d.pod.Spec.Containers, d.pod.Spec.InitContainers} {
		for i := range list {
			for _, c := range d.status.GetContainers() {
				switch {
				case c.GetName() != list[i].Name:
				case slices.Contains(requesters, c.GetId()):
					last = append(last, c.GetId())
				default:
					d.reset(c)
				}
			}
		}
	}
	d.Reset = append(d.Reset, last...)
	first := d.pod.Spec.InitContainers
	if len(first) == 0 {
		first = d.pod.Spec.Containers
	} else {
		first = first[:1]
	}
	for i := range first {
		s, _, _ := d.restartOf(&first[i])
		s.Kind, s.Restart.Step = KindOf(d.pod, first[i].Name), step
		d.Start = append(d.Start, s)
	}
	return true
}

// dueRestartAll returns the containers whose end requires a restart of all containers, recorded as such, and the
// back-off step of that restart. There are none while all of them are in back-off, because a delayed container is not
// started alone.
func (d *decision) dueRestartAll() (ids []string, step int) {
	due := false
	var ends []string
	for c, ended := range restartAllCauses(d.pod, d.status, d.SandboxID) {
		s, _, until := d.restartOf(c)
		due = due || !until.After(d.facts.Now)
		ids, step = append(ids, ended.GetId()), max(step, s.Restart.Step)
		ends = append(ends, fmt.Sprintf("%s ended with %d", c.Name, ended.GetExitCode()))
	}
	if !due {
		return nil, 0
	}
	d.restartAllEnds = ends
	return ids, step
}

// restartAllCauses returns the containers of a sandbox that have ended with an exit code for which one of their rules
// requires a restart of all containers.
func restartAllCauses(
	pod *v1.Pod, status *lifecyclev1.PodStatus, sandbox string,
) iter.Seq2[*v1.Container, *lifecyclev1.Container] {
	return func(yield func(*v1.Container, *lifecyclev1.Container) bool) {
		for c := range initAndOrdinary(pod) {
			ended := podview.LatestIn(status, c.Name, sandbox)
			requires := podview.Exited(ended) &&
				ruleFor(c, ended.GetExitCode()) == v1.ContainerRestartRuleActionRestartAllContainers
			if requires && !yield(c, ended) {
				return
			}
		}
	}
}

// initAndOrdinary returns the init and ordinary containers of a pod's spec.
func initAndOrdinary(pod *v1.Pod) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// MayBeginAgain reports whether a pod has a rule that restarts all its containers.
func MayBeginAgain(pod *v1.Pod) bool {
	for c := range initAndOrdinary(pod) {
		if hasRestartAll(c) {
			return true
		}
	}
	return false
}

// BeginsAgain reports whether a container of a pod has ended in a way that restarts all of them, now or after its
// back-off.
func BeginsAgain(pod *v1.Pod, status *lifecyclev1.PodStatus) bool {
	for range restartAllCauses(pod, status, podview.Sandbox(status).GetId()) {
		return true
	}
	return false
}

// reset removes a container that is restarted with the others.
func (d *decision) reset(c *lifecyclev1.Container) {
	d.Reset = append(d.Reset, c.GetId())
	killed := slices.ContainsFunc(d.Kill, func(k Kill) bool { return k.ContainerID == c.GetId() })
	if podview.Alive(c) && !killed {
		d.kill(c, AllRestart, fmt.Sprintf("Container %s is restarted with all containers of its pod", c.GetName()))
	}
}

// hasRestartAll reports whether a container has a rule that restarts all containers.
func hasRestartAll(c *v1.Container) bool {
	return slices.ContainsFunc(c.RestartPolicyRules, func(r v1.ContainerRestartRule) bool {
		return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
	})
}

// longestRow returns the highest back-off step of a pod's containers. The successors of a container that was removed
// for a restart of all have its step, too.
func longestRow(status *lifecyclev1.PodStatus) int {
	longest := 0
	for _, c := range status.GetContainers() {
		longest = max(longest, podlabels.RestartOf(c.GetAnnotations(), c.GetAttempt()).Step)
	}
	return longest
}
