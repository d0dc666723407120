// Package admission decides whether a new pod may start on this node, beside the pods that are on it already. It is
// pure: its inputs are the pods and the Node, and its output is a refusal or none. A refused pod becomes Failed with
// the reason and the message, permanently: a controller creates another one elsewhere, or a person changes the
// manifest.
//
// The rules and messages are the kubelet's (https://kubernetes.io/docs/concepts/scheduling-eviction/). A pod that has
// run here before is not checked again, so that a restart of the agent ends no running pod.
package admission

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/quartet-node/quartet/internal/nodefeatures"
)

// Refusal is the reason why a pod is not started.
type Refusal struct {
	// Reason is one word for the pod's status.reason and the event.
	Reason string
	// Message is a sentence.
	Message string
	// Short lists the missing resources, if the pod is refused only for them.
	Short []Shortage
}

// RejectedPrefix begins the message in the status of a pod that is refused, as in the kubelet.
const RejectedPrefix = "Pod was rejected: "

// NodeShutdown returns the refusal of new pods while the machine is about to shut down, in the kubelet's words.
func NodeShutdown() *Refusal {
	return &Refusal{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
}

// StatusMessage returns the message of the refusal in the pod's status.
func (r *Refusal) StatusMessage() string { return RejectedPrefix + r.Message }

// The kubelet's reasons. That of a resource is "OutOf" and its name, as in OutOfcpu.
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
	ReasonFeature     = "PodFeatureUnsupported"
	ReasonUnexpected  = "UnexpectedAdmissionError"
	reasonOutOf       = "OutOf"
	predicateMessage  = "Predicate %s failed: %s"
	messageAffinity   = "node(s) didn't match Pod's node affinity/selector"
	messageNodeName   = "node(s) didn't match the requested node name"
	messagePorts      = "node(s) didn't have free ports for the requested pod ports"
	messageUntolerant = "node(s) had taints that the pod didn't tolerate"
)

// Request holds the inputs of one check.
type Request struct {
	// Pod is the new pod.
	Pod *v1.Pod
	// Static is true for a pod that does not come from an API server: taints do not apply to it.
	Static bool
	// Others are the admitted pods that have not completed.
	Others []*v1.Pod
	// Node is the node with its labels, taints and allocatable resources; nil if it is unknown, and then the checks that
	// need it are skipped.
	Node *v1.Node
	// Critical is true for a critical pod, which no pressure on the node excludes.
	Critical bool
	// Machine holds the capabilities of the machine.
	Machine Machine
	// Devices is why devices or CPUs cannot be allocated to the pod; nil if they can. Owned reports whether
	// a resource is one of device plugins, which is not counted otherwise; it may be nil.
	Devices error
	Owned   func(name v1.ResourceName) bool
	// Features are the features of the node; nil skips the check.
	Features *nodefeatures.Features
	// UnsafeSysctls are allowed in addition to the safe ones: allowedUnsafeSysctls of the KubeletConfiguration.
	UnsafeSysctls []string
}

// Machine holds the capabilities of a machine.
type Machine struct {
	// Kernel is the kernel's version; nil if unknown.
	Kernel *version.Version
	// AppArmor is true if the kernel enforces AppArmor profiles.
	AppArmor bool
}

// Check returns why a pod is refused; nil if it is admitted. For a critical pod, every other reason precedes missing
// resources, for which other pods may be preempted.
func Check(r Request) *Refusal {
	checks := []func(Request) *Refusal{
		pressure, devices, operatingSystem, groups, resources, placement, ports, taints, sysctls, apparmor, features,
	}
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

// devices refuses a pod whose devices or CPUs cannot be allocated. As in the kubelet, no pod is preempted for them.
func devices(r Request) *Refusal {
	if r.Devices == nil {
		return nil
	}
	return Unallocated(r.Devices)
}

// reasoned is an error with a reason of its own.
type reasoned interface {
	error
	Reason() string
}

// Unallocated returns the refusal of a pod whose devices or CPUs could not be allocated, in the kubelet's words.
func Unallocated(err error) *Refusal {
	var own reasoned
	if errors.As(err, &own) {
		return &Refusal{Reason: own.Reason(), Message: own.Error()}
	}
	return &Refusal{
		Reason: ReasonUnexpected, Message: fmt.Sprintf("Allocate failed due to %v, which is unexpected", err),
	}
}

func operatingSystem(r Request) *Refusal {
	if r.Node != nil {
		if wanted, ok := r.Pod.Spec.NodeSelector[v1.LabelOSStable]; ok && wanted != r.Node.Labels[v1.LabelOSStable] {
			return &Refusal{Reason: ReasonOSLabel, Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
		}
	}
	if os := r.Pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &Refusal{Reason: ReasonOS, Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// AsksForStrictGroups reports whether a pod restricts its supplemental groups to those that it names. Then the
// runtime's features must be known.
func AsksForStrictGroups(pod *v1.Pod) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && sc.SupplementalGroupsPolicy != nil &&
		*sc.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict
}

// groups refuses a pod with strict supplemental groups if the runtime does not support them. While the Node does not
// describe the runtime, nothing is refused, because the sandbox of such a pod is created only when the runtime reports
// its features.
func groups(r Request) *Refusal {
	if !AsksForStrictGroups(r.Pod) || !KnowsRuntime(r.Node) {
		return nil
	}
	if features := r.Node.Status.Features; features != nil && features.SupplementalGroupsPolicy != nil &&
		*features.SupplementalGroupsPolicy {
		return nil
	}
	return &Refusal{
		Reason:  ReasonGroups,
		Message: fmt.Sprintf("SupplementalGroupsPolicy=%s is not supported in this node", v1.SupplementalGroupsPolicyStrict),
	}
}

// KnowsRuntime reports whether a Node, which may be nil, describes the runtime's features.
func KnowsRuntime(node *v1.Node) bool {
	return node != nil && node.Status.NodeInfo.ContainerRuntimeVersion != ""
}

// resources refuses a pod that requests more than the remaining allocatable resources. Resources that the node does not
// have are not checked, because they belong to the whole cluster; huge pages always belong to a node.
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
	if maximum, known := allocatable[v1.ResourcePods]; known && int64(len(r.Others))+1 > maximum.Value() {
		missing(v1.ResourcePods, 1, int64(len(r.Others)), maximum.Value())
	}
	used := v1.ResourceList{}
	for _, other := range r.Others {
		for name, quantity := range inUse(other) {
			sum := used[name]
			sum.Add(quantity)
			used[name] = sum
		}
	}
	requested := requests(r.Pod)
	for _, name := range slices.Sorted(maps.Keys(requested)) {
		quantity, total := requested[name], used[name]
		has, known := allocatable[name]
		known = known || strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix)
		if !known || quantity.IsZero() || r.Owned != nil && r.Owned(name) || isClaimed(r.Pod, name) {
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

// isClaimed reports whether a pod has a resource by its claim of extended resources, and so not by the Node's amounts.
func isClaimed(pod *v1.Pod, name v1.ResourceName) bool {
	extended := pod.Status.ExtendedResourceClaimStatus
	return extended != nil && slices.ContainsFunc(extended.RequestMappings,
		func(m v1.ContainerExtendedResourceRequest) bool {
			return v1.ResourceName(m.ResourceName) == name
		})
}

func requests(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
}

// inUse returns the resources that a pod occupies: those that are allocated to it, and those that it has not released
// yet according to its status.
func inUse(pod *v1.Pod) v1.ResourceList {
	return resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
}

func outOf(name v1.ResourceName, requested, used, capacity int64) *Refusal {
	return &Refusal{
		Reason:  reasonOutOf + string(name),
		Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, requested, used, capacity),
	}
}

// placement refuses a pod whose node selector, affinity or node name does not match.
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

// taints refuses a pod of the cluster that does not tolerate a NoExecute taint.
func taints(r Request) *Refusal {
	if r.Static || r.Node == nil {
		return nil
	}
	drives := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), r.Node.Spec.Taints,
		r.Pod.Spec.Tolerations, drives, true); untolerated {
		return predicate(ReasonTaint, messageUntolerant)
	}
	return nil
}
