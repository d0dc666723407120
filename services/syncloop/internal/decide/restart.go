package decide

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/observed"
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
	latest := observed.Latest(d.status, c.Name)
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
	ended := observed.Time(latest.GetFinishedAt())
	if !observed.Exited(latest) || ended.IsZero() {
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
	start, end := observed.Time(c.GetStartedAt()), observed.Time(c.GetFinishedAt())
	if start.IsZero() || end.IsZero() || start.Unix() <= 0 {
		return 0
	}
	return end.Sub(start)
}

// restarts says whether a container that has ended with an exit code is to be run again: by the first of the container's own
// rules that is of that code, else by its own policy, else by the pod's. To begin the whole pod again is to run it again, too.
func restarts(pod *v1.Pod, c *v1.Container, code int32) bool {
	policy := pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		switch ruleFor(c, code) {
		case v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers:
			return true
		}
		policy = v1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return code != 0
	case v1.RestartPolicyAlways:
		return true
	}
	return true // the default of an empty policy
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

// Restarts says whether a container that has ended with an exit code is to be run again, by its rules and policies.
func Restarts(pod *v1.Pod, c *v1.Container, code int32) bool { return restarts(pod, c, code) }

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
