package apisource

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// maxLeftOut bounds the number of rejected pods that are remembered and reported.
const maxLeftOut = 100

// pods holds the API server's pods for this node, and the problems with rejected ones. It decides, and has no clock and
// no I/O. It takes ownership of the pods that are passed to it.
type pods struct {
	node    string
	target  func() string
	allowed privilege.Allowed
	held    map[types.UID]*v1.Pod
	// leftOut maps the identity of a rejected pod to the reason.
	leftOut map[string]source.Error
}

// change is the result of one update.
type change struct {
	// op and pod are the change of one pod: None if it was rejected, or is not held.
	op  podset.Op
	pod *v1.Pod
	// any is true if a pod has changed in a field that matters to a node.
	any bool
	// persistent is true if more than its status has changed, see lasts.
	persistent bool
}

func newPods(node string, target func() string, allowed privilege.Allowed) *pods {
	return &pods{
		node:    node,
		target:  target,
		allowed: allowed,
		held:    map[types.UID]*v1.Pod{},
		leftOut: map[string]source.Error{},
	}
}

// all returns the pods sorted by namespace, name and UID.
func (p *pods) all() []*v1.Pod { return sorted(p.held) }

func sorted(pods map[types.UID]*v1.Pod) []*v1.Pod {
	return slices.SortedFunc(maps.Values(pods), func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// wrong returns the reasons for rejected pods, sorted by identity.
func (p *pods) wrong() []source.Error {
	out := make([]source.Error, 0, len(p.leftOut))
	for _, id := range slices.Sorted(maps.Keys(p.leftOut)) {
		out = append(out, p.leftOut[id])
	}
	return out
}

// replace replaces the pods by a list of the API server. Pods of the same resource version keep their pointers.
func (p *pods) replace(all []*v1.Pod, now time.Time) change {
	before := p.held
	p.held = make(map[types.UID]*v1.Pod, len(all))
	clear(p.leftOut)
	var out change
	for _, pod := range all {
		old := before[pod.UID]
		if pod = p.admit(pod, old, now); pod == nil {
			continue
		}
		if old != nil && old.ResourceVersion == pod.ResourceVersion && pod.ResourceVersion != "" {
			pod = old
		}
		p.held[pod.UID] = pod
		op := podset.Compare(old, pod)
		out.any = out.any || op != podset.None
		out.persistent = out.persistent || lasts(op, old, pod)
	}
	for uid := range before {
		if p.held[uid] == nil {
			out.any, out.persistent = true, true
		}
	}
	return out
}

// put adds or replaces a pod.
func (p *pods) put(pod *v1.Pod, now time.Time) change {
	delete(p.leftOut, identity(pod))
	old := p.held[pod.UID]
	if pod = p.admit(pod, old, now); pod == nil || pod == old {
		return change{}
	}
	p.held[pod.UID] = pod
	op := podset.Compare(old, pod)
	out := change{op: podset.Update, pod: pod, any: op != podset.None, persistent: lasts(op, old, pod)}
	switch {
	case old == nil:
		out.op = podset.Add
	case pod.DeletionTimestamp != nil:
		out.op = podset.Delete
	}
	return out
}

// remove removes a pod.
func (p *pods) remove(pod *v1.Pod) change {
	delete(p.leftOut, identity(pod))
	old := p.held[pod.UID]
	if old == nil {
		return change{}
	}
	delete(p.held, pod.UID)
	return change{op: podset.Remove, pod: old, any: true, persistent: true}
}

// lasts reports whether a change must survive a start without the API server. A status change is not worth a write,
// except for a pod that has ended, because it must not run again.
func lasts(op podset.Op, old, new *v1.Pod) bool {
	switch op {
	case podset.None:
		return false
	case podset.Reconcile:
		return hasEnded(old) != hasEnded(new)
	case podset.Add, podset.Update, podset.Delete, podset.Remove, podset.Restore:
		return true
	default:
		return true
	}
}

func hasEnded(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// admit cleans a pod and returns it if it is valid for this node. Otherwise it records the reason and returns old, the
// held version, which may be nil.
func (p *pods) admit(pod, old *v1.Pod, now time.Time) *v1.Pod {
	clean(pod)
	if field, message := unfit(pod, p.node); field != "" {
		p.leave(pod, now, field, message+"; it is rejected: check that the server at this address is the API server")
		return nil
	}
	_, mirror := pod.Annotations[podset.AnnotationMirror]
	if mirror || (old != nil && pod.DeletionTimestamp != nil) {
		return pod // it is terminating, or requests no privilege
	}
	outcome := "it is left out"
	if old != nil {
		outcome = "it continues to run unchanged"
	}
	errs := privilege.Check(pod, Name, p.allowed)
	if len(errs) == 0 {
		return pod
	}
	p.leave(pod, now, errs[0].Field, errs[0].Detail+"; "+outcome)
	return old
}

// leave records why a pod is rejected.
func (p *pods) leave(pod *v1.Pod, now time.Time, field, message string) {
	if len(p.leftOut) < maxLeftOut {
		p.leftOut[identity(pod)] = source.Error{
			Path:    pathOf(p.target(), pod),
			Pod:     pod.Namespace + "/" + pod.Name,
			Field:   field,
			SeenAt:  now,
			Message: message,
		}
	}
}

// unfit returns the problem with the names that a node uses for files and directories; empty if they are valid.
func unfit(pod *v1.Pod, node string) (field, message string) {
	for _, name := range []struct{ field, value string }{
		{"metadata.name", pod.Name}, {"metadata.namespace", pod.Namespace}, {"metadata.uid", string(pod.UID)},
	} {
		if name.value == "" {
			return name.field, "the API server sent a pod without one"
		}
		if wrong := content.IsPathSegmentName(name.value); len(wrong) > 0 {
			return name.field, fmt.Sprintf("the API server sent a pod with %q there, which %s", name.value, wrong[0])
		}
	}
	if pod.Spec.NodeName != node {
		return "spec.nodeName", fmt.Sprintf(
			"the API server sent a pod of the node %q, and this is %q",
			pod.Spec.NodeName,
			node,
		)
	}
	return "", ""
}

// identity identifies a pod that may lack a name or a UID.
func identity(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name + "/" + string(pod.UID) }

// clean removes two things from a pod: managedFields, which the node does not need and which is often most of the pod,
// and the annotations reserved for the agent, which anyone who may write a pod could forge. The annotations that link a
// mirror pod to its static pod stay, because the agent itself has written them.
func clean(pod *v1.Pod) {
	pod.ManagedFields = nil
	for key := range pod.Annotations {
		if podset.IsOwnAnnotation(key) && key != podset.AnnotationMirror && key != podset.AnnotationHash {
			delete(pod.Annotations, key)
		}
	}
}

// pathOf returns the URL of a pod at the API server.
func pathOf(target string, pod *v1.Pod) string {
	return target + "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
}
