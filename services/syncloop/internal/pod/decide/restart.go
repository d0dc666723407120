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

// restartOf says where the next container of a name stands in the row of its kind, and until when it must wait. It is
// computed from the runtime's record: the last container that has ended, and the annotations on it. Only the count goes on
// from the logs when they tell of more: the runtime must not write over them.
func (d *decision) restartOf(c *v1.Container) (s Start, delay time.Duration, until time.Time) {
	latest := podview.Latest(d.status, c.Name)
	var before podlabels.Restart
	count, logged := 0, 0
	if latest != nil {
		before = podlabels.RestartOf(latest.GetAnnotations(), latest.GetAttempt())
		count = before.Count + 1
	}
	if d.facts.Logged != nil {
		logged = d.facts.Logged(c.Name)
	}
	s = Start{Container: c, Restart: podlabels.Restart{Count: max(count, logged), Cause: d.causeOf(c, logged > count)}}
	switch {
	case latest == nil:
		if hasRestartAll(c) {
			s.Restart.Step = longestRow(d.status)
		}
		return s, 0, time.Time{}
	case podlabels.Changed(c, latest.GetAnnotations()):
		return s, 0, time.Time{} // what crashed was another program
	}
	step := before.Step
	if ran(latest) >= backoffReset {
		step = 0
	}
	s.Restart.Step = step + 1
	ended := podview.Time(latest.GetFinishedAt())
	if !podview.Exited(latest) || ended.IsZero() {
		return s, 0, time.Time{}
	}
	// The clock was set back, and how long ago the container ended cannot be known. Counting from now on would do so again at
	// each decision, until the clock has come to the end again.
	if ended.After(d.facts.Now) {
		return s, 0, time.Time{}
	}
	delay = Backoff(step, d.facts.BackoffMax)
	return s, delay, ended.Add(delay)
}

// ran is how long a container that has ended had run.
func ran(c *lifecyclev1.Container) time.Duration {
	start, end := podview.Time(c.GetStartedAt()), podview.Time(c.GetFinishedAt())
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
}

// Restarts says whether a container that has ended is to be run again: by the first of the container's own rules that matches
// its exit code, else by its own policy, else by the pod's. A restart of all containers of the pod counts, too.
func Restarts(pod *v1.Pod, c *v1.Container, end Ending) bool {
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
	return Restarts(d.pod, c, Ending{Code: exitCode(latest), Unhealthy: d.unhealthy(c, latest)})
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
