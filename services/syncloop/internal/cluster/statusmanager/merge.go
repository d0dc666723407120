package statusmanager

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

// Merge returns the status that the API server should have of a pod: the computed status merged into the API server's.
// It changes neither.
//
// Conditions of others, the statuses of resource claims and the nominated node stay as they are. A final phase stays,
// and is not reported while a container may run. A condition whose status is unchanged keeps its transition time, and
// the start time of the pod does not change, even after a restart of this process.
func Merge(has *v1.PodStatus, computed v1.PodStatus, mayRun bool) v1.PodStatus {
	out := *has
	out.ObservedGeneration = computed.ObservedGeneration
	out.HostIP, out.HostIPs = computed.HostIP, computed.HostIPs
	out.InitContainerStatuses = computed.InitContainerStatuses
	out.ContainerStatuses = computed.ContainerStatuses
	out.EphemeralContainerStatuses = computed.EphemeralContainerStatuses
	out.Resources, out.AllocatedResources = computed.Resources, computed.AllocatedResources
	out.VolumeHealth = computed.VolumeHealth
	out.Phase, out.Reason, out.Message = computed.Phase, computed.Reason, computed.Message
	ends := hasEnded(computed.Phase)
	switch {
	case hasEnded(has.Phase) && has.Phase != computed.Phase, ends && mayRun && !hasEnded(has.Phase):
		out.Phase, out.Reason, out.Message = has.Phase, has.Reason, has.Message
	}
	if len(computed.PodIPs) > 0 || !ends { // an ended pod keeps its addresses
		out.PodIP, out.PodIPs = computed.PodIP, computed.PodIPs
	}
	if has.StartTime == nil {
		out.StartTime = computed.StartTime
	}
	if has.QOSClass == "" { // the API server sets the class at the creation, and it does not change
		out.QOSClass = computed.QOSClass
	}
	out.Conditions = mergeConditions(has.Conditions, computed.Conditions)
	return out
}

func hasEnded(phase v1.PodPhase) bool { return phase == v1.PodSucceeded || phase == v1.PodFailed }

// mergeConditions returns this node's conditions as computed, each in its place, and the others as they are.
func mergeConditions(has, computed []v1.PodCondition) []v1.PodCondition {
	out := make([]v1.PodCondition, 0, len(has)+len(computed))
	for i := range has {
		if own := find(computed, has[i].Type); own != nil && podstatus.Owns(own) {
			out = append(out, keepTransitionTime(*own, &has[i]))
		} else if !podstatus.Owns(&has[i]) || has[i].Type == v1.DisruptionTarget { // it stays true once it is set
			out = append(out, has[i])
		}
	}
	for i := range computed {
		if podstatus.Owns(&computed[i]) && find(has, computed[i].Type) == nil {
			out = append(out, computed[i])
		}
	}
	return out
}

// keepTransitionTime keeps the transition time of a condition whose status is unchanged. For a condition of a resize, a
// new reason is a transition, because such a condition is never false.
func keepTransitionTime(c v1.PodCondition, before *v1.PodCondition) v1.PodCondition {
	resizes := c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress
	if before.Status == c.Status && (!resizes || before.Reason == c.Reason) && !before.LastTransitionTime.IsZero() {
		c.LastTransitionTime = before.LastTransitionTime
	}
	c.LastProbeTime = before.LastProbeTime
	return c
}

func find(conditions []v1.PodCondition, kind v1.PodConditionType) *v1.PodCondition {
	if i := slices.IndexFunc(conditions, func(c v1.PodCondition) bool { return c.Type == kind }); i >= 0 {
		return &conditions[i]
	}
	return nil
}

// The lists of a status that the API server merges by a key.
const (
	fieldConditions = "conditions"
	fieldPodIPs     = "podIPs"
	fieldHostIPs    = "hostIPs"
)

// replacing is the element of a list in a strategic merge patch that makes it replace the whole list.
const replacing = `{"$patch":"replace"}`

// Patch returns the strategic merge patch from one status to another, of the pod with the UID only; nil if they are
// equal. It returns an error if the status cannot be encoded as JSON.
func Patch(uid string, has, wanted *v1.PodStatus) ([]byte, error) {
	before, err := fieldsOf(has)
	if err != nil {
		return nil, err
	}
	after, err := fieldsOf(wanted)
	if err != nil {
		return nil, err
	}
	changed := map[string]json.RawMessage{}
	for name, value := range after {
		switch {
		case bytes.Equal(before[name], value):
		case name == fieldPodIPs, name == fieldHostIPs:
			changed[name] = append(append(bytes.TrimSuffix(bytes.Clone(value), []byte("]")), ","+replacing...), ']')
		case name != fieldConditions:
			changed[name] = value
		}
	}
	for name := range before {
		if _, stays := after[name]; !stays && name != fieldConditions {
			changed[name] = json.RawMessage("null")
		}
	}
	if conditions, err := conditionsPatch(has.Conditions, wanted.Conditions); err != nil {
		return nil, err
	} else if conditions != nil {
		changed[fieldConditions] = conditions
	}
	if len(changed) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]string{"uid": uid}, "status": changed})
}

// fieldsOf returns the set fields of a status as JSON.
func fieldsOf(status *v1.PodStatus) (map[string]json.RawMessage, error) {
	whole, err := json.Marshal(status)
	if err != nil {
		return nil, fmt.Errorf("the status as JSON: %w", err)
	}
	fields := map[string]json.RawMessage{}
	return fields, json.Unmarshal(whole, &fields)
}

// conditionsPatch returns the changed and the removed conditions; nil if there are none. The API server merges the list
// by type, so concurrent changes of other conditions stay.
func conditionsPatch(has, wanted []v1.PodCondition) (json.RawMessage, error) {
	var list []any
	for i := range wanted {
		before := find(has, wanted[i].Type)
		switch {
		case before == nil:
			list = append(list, wanted[i])
		case !sameCondition(before, &wanted[i]):
			list = append(list, changedCondition{
				PodCondition: wanted[i], Reason: orNull(wanted[i].Reason), Message: orNull(wanted[i].Message),
				ObservedGeneration: orNull(wanted[i].ObservedGeneration),
			})
		}
	}
	for i := range has {
		if find(wanted, has[i].Type) == nil {
			list = append(list, map[string]string{"$patch": "delete", "type": string(has[i].Type)})
		}
	}
	if list == nil {
		return nil, nil
	}
	return json.Marshal(list)
}

// changedCondition is the patch of an existing condition. Fields that the new condition does not set are null, because
// the merge would keep their old values otherwise.
type changedCondition struct {
	v1.PodCondition `json:",inline"`

	Reason             *string `json:"reason"`
	Message            *string `json:"message"`
	ObservedGeneration *int64  `json:"observedGeneration"`
}

func orNull[T comparable](value T) *T {
	if value == *new(T) {
		return nil
	}
	return &value
}

// sameCondition compares two conditions as the API server stores them, with times in whole seconds.
func sameCondition(a, b *v1.PodCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
		a.ObservedGeneration == b.ObservedGeneration &&
		a.LastTransitionTime.Unix() == b.LastTransitionTime.Unix() && a.LastProbeTime.Unix() == b.LastProbeTime.Unix()
}
