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
	// backoffBase is the back-off after the first restart; each further one doubles it. The kubelet's number.
	backoffBase = 10 * time.Second
	// DefaultBackoffMax is the longest crash back-off where the configuration names none. The kubelet's number.
	DefaultBackoffMax = 5 * time.Minute
	// backoffReset is the time of running after which a container's crashes are forgotten. The kubelet's number.
	backoffReset = 10 * time.Minute
)

// Backoff is how long after its end a container waits for its restart. Step is how many restarts of the same row of
// crashes came before it: the first crash is restarted at once, then 10 s, doubling up to max.
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

// startOf is the next container of a name, with its count and its cause. Only the count goes on from the logs when they tell of
// more: the runtime must not write over them.
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

// restartOf says where the next container of a name stands in the row of its kind, and until when it must wait. It is
// computed from the runtime's record: the last container that has ended, and the annotations on it.
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
		return s, 0, time.Time{} // what crashed was another program
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

// restartOfKilled is restartOf for a container that runs and is killed by a probe. It has not crashed, so its back-off counts
// from the end before it, and there is none when nothing has ended before.
func (d *decision) restartOfKilled(c *v1.Container, running *lifecyclev1.Container) (s Start, delay time.Duration, until time.Time) {
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

// stepOf is how many restarts of the present row of crashes came before a container.
func (d *decision) stepOf(c *lifecyclev1.Container) int {
	if d.ran(c) >= backoffReset {
		return 0
	}
	return podlabels.RestartOf(c.GetAnnotations(), c.GetAttempt()).Step
}

// backoff is the back-off of a step, and when it is over if it counts from the end of a container.
func (d *decision) backoff(step int, from *lifecyclev1.Container) (delay time.Duration, until time.Time) {
	ended := podview.Time(from.GetFinishedAt())
	// A clock that was set back does not tell how long ago the container ended. Counting from now on would do so again at each
	// decision, until the clock has come to the end again.
	if ended.IsZero() || ended.After(d.facts.Now) {
		return 0, time.Time{}
	}
	delay = Backoff(step, d.facts.BackoffMax)
	return delay, ended.Add(delay)
}

// ran is how long a container has run, up to its end or until now.
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

// Ending is how a container has ended, as far as it decides on a restart.
type Ending struct {
	// Code is the exit code.
	Code int32
	// Unhealthy is true when the container's liveness or startup probe has failed. Its end is a failure, whatever its exit code is.
	Unhealthy bool
	// Replaced is true when the container was stopped because another one takes its place.
	Replaced bool
}

// Restarts says whether a container that has ended is to be run again: by the first of the container's own rules that matches
// its exit code, else by its own policy, else by the pod's. A restart of all containers of the pod counts, too. No policy counts
// for one that is replaced.
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

// policyOf is the restart policy of a container: its own, else the pod's.
func policyOf(pod *v1.Pod, c *v1.Container) v1.RestartPolicy {
	if c.RestartPolicy != nil {
		return v1.RestartPolicy(*c.RestartPolicy)
	}
	return pod.Spec.RestartPolicy
}

// restarts says whether the latest container of a name is to be run again, once it has ended.
func (d *decision) restarts(c *v1.Container, latest *lifecyclev1.Container) bool {
	return Restarts(d.pod, c, Ending{Code: exitCode(latest), Unhealthy: d.unhealthy(c, latest), Replaced: d.replaced(latest)})
}

// unhealthy says whether a probe of a container has failed that has the container killed. The prober keeps the results of a
// container until the next one of its name is there, and over a restart of this process.
func (d *decision) unhealthy(c *v1.Container, latest *lifecyclev1.Container) bool {
	return d.livenessFailed(c, latest) || d.startupFailed(c, latest)
}

func (d *decision) livenessFailed(c *v1.Container, latest *lifecyclev1.Container) bool {
	return c.LivenessProbe != nil && d.facts.Liveness != nil && d.facts.Liveness(latest.GetId()) == Failure
}

func (d *decision) startupFailed(c *v1.Container, latest *lifecyclev1.Container) bool {
	return c.StartupProbe != nil && d.facts.Startup != nil && d.facts.Startup(latest.GetId()) == Failure
}

// ruleFor is the action of the first of a container's rules that is of an exit code; empty when none is.
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

// anyRestarts says whether the pod has a container that could be run again after some end.
func anyRestarts(pod *v1.Pod) bool {
	can := func(c v1.Container) bool {
		if c.RestartPolicy == nil {
			return pod.Spec.RestartPolicy != v1.RestartPolicyNever
		}
		return *c.RestartPolicy != v1.ContainerRestartPolicyNever || len(c.RestartPolicyRules) > 0
	}
	return slices.ContainsFunc(pod.Spec.Containers, can)
}
