// Package admission says whether a pod that a source has newly named may be started on this node, beside those that are on
// it already. It is pure: the pods and the Node go in, a refusal comes out or none. A pod that is refused is Failed with its
// reason and message, for good: a controller makes another one elsewhere, a person changes the manifest.
//
// The rules, and the words of the refusals, are the kubelet's (https://kubernetes.io/docs/concepts/scheduling-eviction/).
// A pod that has run here before is not asked again: no restart of the agent ends a pod that runs.
package admission

import (
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Refusal is why a pod is not started.
type Refusal struct {
	// Reason is one word, the pod's status.reason and the event's.
	Reason string
	// Message is a sentence.
	Message string
	// Short is what is missing of the node's resources, when that is all that the pod is refused for.
	Short []Shortage
}

// The reasons, as the kubelet has them. That of a resource is "OutOf" and its name, as OutOfcpu.
const (
	ReasonPressure    = "Evicted"
	ReasonOSLabel     = "PodOSSelectorNodeLabelDoesNotMatch"
	ReasonOS          = "PodOSNotSupported"
	ReasonGroups      = "SupplementalGroupsPolicyNotSupported"
	ReasonAffinity    = "NodeAffinity"
	ReasonNodeName    = "NodeName"
	ReasonPorts       = "NodePorts"
	ReasonTaint       = "TaintToleration"
	ReasonSysctl      = "SysctlForbidden"
	ReasonAppArmor    = "AppArmor"
	reasonOutOf       = "OutOf"
	predicateMessage  = "Predicate %s failed: %s"
	messageAffinity   = "node(s) didn't match Pod's node affinity/selector"
	messageNodeName   = "node(s) didn't match the requested node name"
	messagePorts      = "node(s) didn't have free ports for the requested pod ports"
	messageUntolerant = "node(s) had taints that the pod didn't tolerate"
)

// Request is one question.
type Request struct {
	// Pod is the pod that is new.
	Pod *v1.Pod
	// Static is true for a pod that does not come from an API server: taints do not keep it away.
	Static bool
	// Others are the pods that were let in and have not run to their end.
	Others []*v1.Pod
	// Node is the node with its labels, taints and allocatable; nil when it is not known, and then what depends on it is not
	// asked.
	Node *v1.Node
	// Critical is true for a pod that the node cannot do without: nothing that it has run short of keeps it away.
	Critical bool
	// Machine is what the machine is able to do.
	Machine Machine
	// UnsafeSysctls are allowed beside the safe ones: allowedUnsafeSysctls of the KubeletConfiguration.
	UnsafeSysctls []string
}

// Machine is what a machine is able to do.
type Machine struct {
	// Kernel is the kernel's version; nil when it is not known.
	Kernel *version.Version
	// AppArmor is true when the kernel enforces profiles of AppArmor.
	AppArmor bool
}

// Check returns why a pod is refused; nil when it is let in. For a critical pod any other reason comes before a want of resources, for
// which others may be ended.
func Check(r Request) *Refusal {
	checks := []func(Request) *Refusal{pressure, operatingSystem, groups, resources, placement, ports, taints, sysctls, apparmor}
	var short *Refusal
	for _, check := range checks {
		refusal := check(r)
		switch {
		case refusal == nil:
		case r.Critical && len(refusal.Short) > 0:
			short = refusal
		default:
			return refusal
		}
	}
	return short
}

func predicate(reason, message string) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(predicateMessage, reason, message)}
}

func operatingSystem(r Request) *Refusal {
	if r.Node != nil {
		if wanted, asked := r.Pod.Spec.NodeSelector[v1.LabelOSStable]; asked && wanted != r.Node.Labels[v1.LabelOSStable] {
			return &Refusal{Reason: ReasonOSLabel, Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
		}
	}
	if os := r.Pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &Refusal{Reason: ReasonOS, Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// AsksForStrictGroups tells whether a pod's supplemental groups are to be only those that it names. Then the runtime has to be known.
func AsksForStrictGroups(pod *v1.Pod) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict
}

// groups refuses a pod that asks for strict supplemental groups of a runtime that does not say that it has them. While the Node says
// nothing of the runtime, nothing is refused: a sandbox of such a pod is made only when the runtime says it itself.
func groups(r Request) *Refusal {
	if !AsksForStrictGroups(r.Pod) || !KnowsRuntime(r.Node) {
		return nil
	}
	if features := r.Node.Status.Features; features != nil && features.SupplementalGroupsPolicy != nil && *features.SupplementalGroupsPolicy {
		return nil
	}
	return &Refusal{Reason: ReasonGroups, Message: fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node", v1.SupplementalGroupsPolicyStrict)}
}

// KnowsRuntime tells whether a Node, which may be nil, says what the container runtime can do.
func KnowsRuntime(node *v1.Node) bool {
	return node != nil && node.Status.NodeInfo.ContainerRuntimeVersion != ""
}

// resources refuses a pod that asks for more than is left of what the node has for pods. Of a resource that the node does not
// have at all it is not asked: those that belong to a whole cluster are no node's.
func resources(r Request) *Refusal {
	if r.Node == nil {
		return nil
	}
	allocatable := r.Node.Status.Allocatable
	var first *Refusal
	missing := func(name v1.ResourceName, requested, used, capacity int64) {
		if first == nil {
			first = outOf(name, requested, used, capacity)
		}
		first.Short = append(first.Short, Shortage{Resource: name, Amount: requested + used - capacity})
	}
	if most, known := allocatable[v1.ResourcePods]; known && int64(len(r.Others))+1 > most.Value() {
		missing(v1.ResourcePods, 1, int64(len(r.Others)), most.Value())
	}
	used := v1.ResourceList{}
	for _, other := range r.Others {
		for name, quantity := range inUse(other) {
			sum := used[name]
			sum.Add(quantity)
			used[name] = sum
		}
	}
	asked := requests(r.Pod)
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		quantity, total := asked[name], used[name]
		has, known := allocatable[name]
		if !known || quantity.IsZero() {
			continue
		}
		sum := quantity.DeepCopy()
		sum.Add(total)
		if sum.Cmp(has) <= 0 {
			continue
		}
		if name == v1.ResourceCPU {
			missing(name, quantity.MilliValue(), total.MilliValue(), has.MilliValue())
			continue
		}
		missing(name, quantity.Value(), total.Value(), has.Value())
	}
	return first
}

func requests(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// inUse is what a pod has of the node: what was promised to it, and what it has not given back yet by its status.
func inUse(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true})
}

func outOf(name v1.ResourceName, requested, used, capacity int64) *Refusal {
	return &Refusal{
		Reason:  reasonOutOf + string(name),
		Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity),
	}
}

// placement refuses a pod that its node selector, its affinity or its node's name want elsewhere.
func placement(r Request) *Refusal {
	if r.Node == nil {
		return nil
	}
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(r.Pod).Match(r.Node); err != nil || !matches {
		return predicate(ReasonAffinity, messageAffinity)
	}
	if name := r.Pod.Spec.NodeName; name != "" && name != r.Node.Name {
		return predicate(ReasonNodeName, messageNodeName)
	}
	return nil
}

// taints refuses a pod of the cluster that does not tolerate a taint which would drive it out at once.
func taints(r Request) *Refusal {
	if r.Static || r.Node == nil {
		return nil
	}
	drives := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), r.Node.Spec.Taints, r.Pod.Spec.Tolerations, drives, true); untolerated {
		return predicate(ReasonTaint, messageUntolerant)
	}
	return nil
}
