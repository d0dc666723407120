package resize

import (
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Condition is PodResizePending or PodResizeInProgress of a pod; there is none that is not true.
type Condition struct {
	// Reason is v1.PodReasonDeferred, v1.PodReasonInfeasible, v1.PodReasonError or empty.
	Reason string `json:"reason,omitempty"`
	// Message is a sentence.
	Message string `json:"message,omitempty"`
	// Generation is that of the pod that it is about.
	Generation int64 `json:"generation,omitempty"`
	// Since is since when it has this reason.
	Since time.Time `json:"since"`
}

// Conditions are those of one pod. They are values: each method returns the next ones.
type Conditions struct {
	Pending    *Condition `json:"pending,omitempty"`
	InProgress *Condition `json:"inProgress,omitempty"`
}

// Wait notes why the pod is not resized yet, or never will be. It returns whether that is worth an event: for this generation of the
// pod it was not said before.
func (c Conditions) Wait(reason, message string, generation int64, now time.Time) (next Conditions, news bool) {
	before := c.Pending
	c.Pending = &Condition{Reason: reason, Message: message, Generation: generation, Since: now}
	if before != nil && before.Reason == reason {
		c.Pending.Since = before.Since
	}
	return c, before == nil || before.Reason != reason || before.Generation != generation
}

// Accept notes that the node has promised what is wanted. An error of a resize before it does not count any more.
func (c Conditions) Accept(generation int64, now time.Time) Conditions {
	return Conditions{InProgress: &Condition{Generation: generation, Since: now}}
}

// Settle notes that there is nothing to wait for.
func (c Conditions) Settle() Conditions {
	c.Pending = nil
	return c
}

// Continue notes that the pod runs with something else than was promised. What is known of that stays.
func (c Conditions) Continue(generation int64, now time.Time) Conditions {
	if c.InProgress == nil {
		c.InProgress = &Condition{Generation: generation, Since: now}
	}
	return c
}

// Fail notes why the pod could not be changed; it is tried again. It returns whether that is worth an event.
func (c Conditions) Fail(message string, generation int64, now time.Time) (next Conditions, news bool) {
	failed := Condition{Reason: v1.PodReasonError, Message: message, Generation: generation, Since: now}
	if before := c.InProgress; before != nil {
		failed.Generation = before.Generation
		if before.Reason == failed.Reason {
			failed.Since = before.Since
		}
		news = before.Reason != failed.Reason
	} else {
		news = true
	}
	c.InProgress = &failed
	return c, news
}

// Done notes that the pod runs with what was promised. It returns the generation that the resize was of, and whether there was one.
func (c Conditions) Done() (next Conditions, generation int64, was bool) {
	if c.InProgress == nil {
		return c, 0, false
	}
	generation = c.InProgress.Generation
	c.InProgress = nil
	return c, generation, true
}

// summary is what the events of a resize say, in the kubelet's form.
type summary struct {
	InitContainers []named `json:"initContainers,omitempty"`
	Containers     []named `json:"containers,omitempty"`
	Generation     int64   `json:"generation"`
	Error          string  `json:"error,omitempty"`
}

type named struct {
	Name      string                  `json:"name"`
	Resources v1.ResourceRequirements `json:"resources"`
}

// Summary says in JSON which resources the containers of a pod are to have, of which generation that is, and what is wrong, if
// anything is.
func Summary(pod *v1.Pod, generation int64, wrong string) string {
	list := func(containers []v1.Container) (out []named) {
		for i := range containers {
			out = append(out, named{Name: containers[i].Name, Resources: containers[i].Resources})
		}
		return out
	}
	text, err := json.Marshal(summary{
		InitContainers: list(pod.Spec.InitContainers), Containers: list(pod.Spec.Containers), Generation: generation, Error: wrong,
	})
	if err != nil {
		return wrong // resources marshal always
	}
	return string(text)
}
