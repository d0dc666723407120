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
	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// maxLeftOut bounds how many pods that are left out are remembered and shown at a time.
const maxLeftOut = 100

// pods are those that the API server has for this node, and what is wrong with others that it sent. It decides, and has no
// clock and no I/O. A pod that it is given is its own from then on.
type pods struct {
	node, target string
	allowed      privilege.Allowed
	held         map[types.UID]*v1.Pod
	// leftOut has, by identity, why a pod is not held.
	leftOut map[string]source.Error
}

// change is what has become of the pods.
type change struct {
	// op and pod are the change of one pod: None when it was not taken, or is none of those that are held.
	op  podset.Op
	pod *v1.Pod
	// any is true when a pod is not as it was, in what a node looks at.
	any bool
	// lasting is true when that is more than its status: see lasts.
	lasting bool
}

func newPods(node, target string, allowed privilege.Allowed) *pods {
	return &pods{node: node, target: target, allowed: allowed, held: map[types.UID]*v1.Pod{}, leftOut: map[string]source.Error{}}
}

// all returns the pods in the order of namespace, name and UID.
func (p *pods) all() []*v1.Pod { return sorted(p.held) }

func sorted(pods map[types.UID]*v1.Pod) []*v1.Pod {
	return slices.SortedFunc(maps.Values(pods), func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// wrong returns why pods are left out, in the order of their identity.
func (p *pods) wrong() []source.Error {
	out := make([]source.Error, 0, len(p.leftOut))
	for _, id := range slices.Sorted(maps.Keys(p.leftOut)) {
		out = append(out, p.leftOut[id])
	}
	return out
}

// replace takes all pods of the API server. Those of the same version stay the same pointers.
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
		out.lasting = out.lasting || lasts(op, old, pod)
	}
	for uid := range before {
		if p.held[uid] == nil {
			out.any, out.lasting = true, true
		}
	}
	return out
}

// put takes a pod that is new or has changed.
func (p *pods) put(pod *v1.Pod, now time.Time) change {
	delete(p.leftOut, identity(pod))
	old := p.held[pod.UID]
	if pod = p.admit(pod, old, now); pod == nil || pod == old {
		return change{}
	}
	p.held[pod.UID] = pod
	op := podset.Compare(old, pod)
	out := change{op: podset.Update, pod: pod, any: op != podset.None, lasting: lasts(op, old, pod)}
	switch {
	case old == nil:
		out.op = podset.Add
	case pod.DeletionTimestamp != nil:
		out.op = podset.Delete
	}
	return out
}

// remove takes that a pod is gone.
func (p *pods) remove(pod *v1.Pod) change {
	delete(p.leftOut, identity(pod))
	old := p.held[pod.UID]
	if old == nil {
		return change{}
	}
	delete(p.held, pod.UID)
	return change{op: podset.Remove, pod: old, any: true, lasting: true}
}

// lasts tells whether a start without the API server is to know of a change. A status that changes is not worth a write,
// but for that of a pod that has ended: it must not be run once more.
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

// admit cleans a pod and returns it if it can be one of this node's. If not, the reason is noted, and what is held of it
// stays: old is returned, nil when there is none.
func (p *pods) admit(pod, old *v1.Pod, now time.Time) *v1.Pod {
	clean(pod)
	if field, message := unfit(pod, p.node); field != "" {
		p.leave(pod, now, field, message+"; it is left out: see that what answers at this address is the API server")
		return nil
	}
	_, mirror := pod.Annotations[podset.AnnotationMirror]
	if mirror || (old != nil && pod.DeletionTimestamp != nil) {
		return pod // it asks for nothing but its end, or for nothing at all
	}
	outcome := "it is left out"
	if old != nil {
		outcome = "it runs on as it was"
	}
	errs := privilege.Check(pod, Name, p.allowed)
	if len(errs) == 0 {
		return pod
	}
	p.leave(pod, now, errs[0].Field, errs[0].Detail+"; "+outcome)
	return old
}

// leave notes why a pod is not taken.
func (p *pods) leave(pod *v1.Pod, now time.Time, field, message string) {
	if len(p.leftOut) < maxLeftOut {
		p.leftOut[identity(pod)] = source.Error{Path: pathOf(p.target, pod), Pod: pod.Namespace + "/" + pod.Name, Field: field, SeenAt: now, Message: message}
	}
}

// unfit says what a pod lacks without which nothing can be done with it: names that a node makes files and directories of.
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
		return "spec.nodeName", fmt.Sprintf("the API server sent a pod of the node %q, and this is %q", pod.Spec.NodeName, node)
	}
	return "", ""
}

// identity tells pods apart that may lack a name or a UID.
func identity(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name + "/" + string(pod.UID) }

// clean takes out of a pod who wrote which of its fields, which the node has no use for and which is often most of it, and
// the annotations that only the agent may write: anybody who may write a pod could forge them. Those by which a mirror pod
// and the static pod that it mirrors are known are not among them: the API server has them from the agent.
func clean(pod *v1.Pod) {
	pod.ManagedFields = nil
	for key := range pod.Annotations {
		if podset.IsOwnAnnotation(key) && key != podset.AnnotationMirror && key != podset.AnnotationHash {
			delete(pod.Annotations, key)
		}
	}
}

// pathOf is where the API server has a pod.
func pathOf(target string, pod *v1.Pod) string {
	return target + "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
}
