package decide

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

const (
	// backoffBase is the kubelet's back-off after the first restart; each further one doubles it.
	backoffBase = 10 * time.Second
	// DefaultBackoffMax is the kubelet's default of the longest crash back-off.
	DefaultBackoffMax = 5 * time.Minute
	// backoffReset is the kubelet's running time after which a container's crashes are forgotten.
	backoffReset = 10 * time.Minute
)

// Backoff returns the delay between a container's end and its restart. step is the number of restarts after consecutive
// crashes before it: the first crash is restarted at once, then after 10 s, doubling up to longest.
func Backoff(step int, longest time.Duration) time.Duration {
	if longest <= 0 {
		longest = DefaultBackoffMax
	}
	if step <= 0 {
		return 0
	}
	delay := backoffBase
	for ; step > 1 && delay < longest; step-- {
		delay *= 2
	}
	return min(delay, longest)
}

// startOf returns the next container of a name, with its count and its cause. Only the count continues from later logs,
// so that the runtime does not overwrite them.
func (d *decision) startOf(c *v1.Container, latest *lifecyclev1.Container) Start {
	count, logged := 0, 0
	if latest != nil {
		count = podlabels.RestartOf(latest.GetAnnotations(), latest.GetAttempt()).Count + 1
	}
	if d.facts.Logged != nil {
		logged = d.facts.Logged(c.Name)
	}
	return Start{Container: c, Restart: podlabels.Restart{Count: max(count, logged), Cause: d.causeOf(c, logged > count)}}
}

// restartOf returns the next container of a name, and the end of its back-off. It is computed from the runtime's
// records: the last ended container and its annotations.
func (d *decision) restartOf(c *v1.Container) (s Start, delay time.Duration, until time.Time) {
	latest := podview.Latest(d.status, c.Name)
	s = d.startOf(c, latest)
	switch {
	case latest == nil:
		if hasRestartAll(c) {
			s.Restart.Step = longestRow(d.status)
		}
		return s, 0, time.Time{}
	case podlabels.Changed(c, latest.GetAnnotations()):
		return s, 0, time.Time{} // another program has crashed
	case d.madeAgain(c, latest):
		s.Restart.Step = d.stepOf(latest)
		return s, 0, time.Time{} // it has not crashed
	}
	step := d.stepOf(latest)
	s.Restart.Step = step + 1
	if !podview.Exited(latest) {
		return s, 0, time.Time{}
	}
	delay, until = d.backoff(step, latest)
	return s, delay, until
}

// restartOfKilled is restartOf for a running container that is killed because of a probe. It has not crashed, so its
// back-off counts from the previous end, and there is none without a previous end.
func (d *decision) restartOfKilled(
	c *v1.Container, running *lifecyclev1.Container,
) (s Start, delay time.Duration, until time.Time) {
	s = d.startOf(c, running)
	step := d.stepOf(running)
	s.Restart.Step = step
	for _, before := range d.status.GetContainers() { // newest first
		if before.GetName() == c.Name && podview.Exited(before) {
			s.Restart.Step = step + 1
			delay, until = d.backoff(step, before)
			break
		}
	}
	return s, delay, until
}

// stepOf returns the number of restarts after consecutive crashes before a container.
func (d *decision) stepOf(c *lifecyclev1.Container) int {
	if d.ran(c) >= backoffReset {
		return 0
	}
	return podlabels.RestartOf(c.GetAnnotations(), c.GetAttempt()).Step
}

// backoff returns the back-off of a step, and its end if it counts from the end of a container.
func (d *decision) backoff(step int, from *lifecyclev1.Container) (delay time.Duration, until time.Time) {
	ended := podview.Time(from.GetFinishedAt())
	// After the clock was set back, the time since the container's end is unknown. Counting from now would start again at
	// each decision, until the clock reaches the end again.
	if ended.IsZero() || ended.After(d.facts.Now) {
		return 0, time.Time{}
	}
	delay = Backoff(step, d.facts.BackoffMax)
	return delay, ended.Add(delay)
}

// ran returns how long a container has run, up to its end or until now.
func (d *decision) ran(c *lifecyclev1.Container) time.Duration {
	start, end := podview.Time(c.GetStartedAt()), podview.Time(c.GetFinishedAt())
	if podview.Running(c) {
		end = d.facts.Now
	}
	if start.IsZero() || end.IsZero() || start.Unix() <= 0 {
		return 0
	}
	return end.Sub(start)
}

// Ending is the part of a container's end that decides about its restart.
type Ending struct {
	// Code is the exit code.
	Code int32
	// Unhealthy is true if the container's liveness or startup probe has failed. Its end is then a failure regardless of
	// its exit code.
	Unhealthy bool
	// Replaced is true if the container was stopped to be replaced by another one.
	Replaced bool
}

// Restarts reports whether an ended container should run again: according to the first of its own rules that matches
// its exit code, or else its own policy, or else the pod's. A restart of all containers counts, too. No policy applies
// to one that is replaced.
func Restarts(pod *v1.Pod, c *v1.Container, end Ending) bool {
	if end.Replaced {
		return true
	}
	if c.RestartPolicy != nil {
		switch ruleFor(c, end.Code) {
		case v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers:
			return true
		}
	}
	switch policyOf(pod, c) {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return end.Code != 0 || end.Unhealthy
	case v1.RestartPolicyAlways:
		return true
	}
	return true // the default of an empty policy
}

// policyOf returns the restart policy of a container: its own, or else the pod's.
func policyOf(pod *v1.Pod, c *v1.Container) v1.RestartPolicy {
	if c.RestartPolicy != nil {
		return v1.RestartPolicy(*c.RestartPolicy)
	}
	return pod.Spec.RestartPolicy
}

// restarts reports whether the latest container of a name should run again after its end.
func (d *decision) restarts(c *v1.Container, latest *lifecyclev1.Container) bool {
	return Restarts(d.pod, c, Ending{
		Code: exitCode(latest), Unhealthy: d.unhealthy(c, latest), Replaced: d.replaced(latest),
	})
}

// unhealthy reports whether a probe that kills its container has failed. The prober keeps the results of a container
// until its successor exists, and across a restart of this process.
func (d *decision) unhealthy(c *v1.Container, latest *lifecyclev1.Container) bool {
	return d.livenessFailed(c, latest) || d.startupFailed(c, latest)
}

func (d *decision) livenessFailed(c *v1.Container, latest *lifecyclev1.Container) bool {
	return c.LivenessProbe != nil && d.facts.Liveness != nil && d.facts.Liveness(latest.GetId()) == Failure
}

func (d *decision) startupFailed(c *v1.Container, latest *lifecyclev1.Container) bool {
	return c.StartupProbe != nil && d.facts.Startup != nil && d.facts.Startup(latest.GetId()) == Failure
}

// ruleFor returns the action of the first of a container's rules that matches an exit code; empty if none does.
func ruleFor(c *v1.Container, code int32) v1.ContainerRestartRuleAction {
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		listed := slices.Contains(rule.ExitCodes.Values, code)
		switch rule.ExitCodes.Operator {
		case v1.ContainerRestartRuleOnExitCodesOpIn:
			if listed {
				return rule.Action
			}
		case v1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !listed {
				return rule.Action
			}
		}
	}
	return ""
}

// Continues reports whether a new life of a pod can start with the containers of the life before in the runtime: all of
// its containers then run again, with the next restart count. A container that had completed according to its restart
// policy would not run again, and an active deadline would count from the start of the life before.
func Continues(pod *v1.Pod, status *lifecyclev1.PodStatus) bool {
	if len(status.GetContainers()) == 0 || !anyRestarts(pod) || pod.Spec.ActiveDeadlineSeconds != nil {
		return false
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		latest := podview.Latest(status, c.Name)
		succeeded := latest == nil || (podview.Exited(latest) && latest.GetExitCode() == 0)
		if !succeeded && !Restarts(pod, c, Ending{Code: exitCode(latest)}) {
			return false
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if latest := podview.Latest(status, c.Name); latest != nil && !Restarts(pod, c, Ending{Code: exitCode(latest)}) {
			return false
		}
	}
	return true
}

// anyRestarts reports whether the pod has a container that could run again after some end.
func anyRestarts(pod *v1.Pod) bool {
	can := func(c v1.Container) bool {
		if c.RestartPolicy == nil {
			return pod.Spec.RestartPolicy != v1.RestartPolicyNever
		}
		return *c.RestartPolicy != v1.ContainerRestartPolicyNever || len(c.RestartPolicyRules) > 0
	}
	return slices.ContainsFunc(pod.Spec.Containers, can)
}
