package resize

import (
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Condition is PodResizePending or PodResizeInProgress of a pod. Such a condition is always true.
type Condition struct {
	// Reason is v1.PodReasonDeferred, v1.PodReasonInfeasible, v1.PodReasonError or empty.
	Reason string `json:"reason,omitempty"`
	// Message explains the reason.
	Message string `json:"message,omitempty"`
	// Generation is the generation of the pod that asked for the resize.
	Generation int64 `json:"generation,omitempty"`
	// Since is the time of the last transition, at which the condition got this reason.
	Since time.Time `json:"since"`
}

// Conditions are those of one pod. They are values: each method returns the changed ones.
type Conditions struct {
	Pending    *Condition `json:"pending,omitempty"`
	InProgress *Condition `json:"inProgress,omitempty"`
}

// Wait sets why the pod is not resized yet, or never will be. news is true if that was not said before of this
// generation, and is worth an event.
func (c Conditions) Wait(reason, message string, generation int64, now time.Time) (next Conditions, news bool) {
	before := c.Pending
	c.Pending = &Condition{Reason: reason, Message: message, Generation: generation, Since: now}
	if before != nil && before.Reason == reason {
		c.Pending.Since = before.Since
	}
	return c, before == nil || before.Reason != reason || before.Generation != generation
}

// Accept begins a resize. The error of an earlier resize does not count any more.
func (c Conditions) Accept(generation int64, now time.Time) Conditions {
	return Conditions{InProgress: &Condition{Generation: generation, Since: now}}
}

// Settle ends the waiting.
func (c Conditions) Settle() Conditions {
	c.Pending = nil
	return c
}

// Continue notes that the pod does not run with its allocated resources yet. A reason stays.
func (c Conditions) Continue(generation int64, now time.Time) Conditions {
	if c.InProgress == nil {
		c.InProgress = &Condition{Generation: generation, Since: now}
	}
	return c
}

// Fail sets why a resize failed, which is retried. news is true if it is worth an event.
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

// Done ends a resize. was is true if there was one, and generation is the generation that asked for it.
func (c Conditions) Done() (next Conditions, generation int64, was bool) {
	if c.InProgress == nil {
		return c, 0, false
	}
	generation = c.InProgress.Generation
	c.InProgress = nil
	return c, generation, true
}

// summary is the message of the events of a resize, in the kubelet's format.
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

// Summary returns, as JSON, the resources of the containers of a pod, the generation that asks for them, and the error,
// if there is one.
func Summary(pod *v1.Pod, generation int64, wrong string) string {
	list := func(containers []v1.Container) (out []named) {
		for i := range containers {
			out = append(out, named{Name: containers[i].Name, Resources: containers[i].Resources})
		}
		return out
	}
	text, err := json.Marshal(summary{
		InitContainers: list(pod.Spec.InitContainers), Containers: list(pod.Spec.Containers), Generation: generation,
		Error: wrong,
	})
	if err != nil {
		return wrong // resources marshal always
	}
	return string(text)
}
