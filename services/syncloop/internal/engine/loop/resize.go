package loop

import (
	"context"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// eventResizeDeferred is the kubelet's reason of the event that a pod goes on with the resources that it has.
const eventResizeDeferred = "ResizeDeferred"

// resources are the requests and limits of containers, by name.
type resources map[string]v1.ResourceRequirements

// allocate decides which resources a pod that was let in has: those that its source names, or, as long as the node has no room for
// them, those that it has now. It returns whether the pod has come to others by that. The first time in this process what it has is
// known from the runtime.
func (l *Loop) allocate(uid types.UID, d *desiredPod) (changed bool) {
	before, kept := d.pod, l.asItIs(uid, d)
	d.allocated, d.pod = true, d.wanted
	pending := podstatus.Reason{}
	if kept != d.wanted {
		if message := l.resizeRefusal(uid, d.wanted, kept); message != "" {
			d.pod, pending = kept, podstatus.Reason{Reason: v1.PodReasonDeferred, Message: message}
		}
	}
	if d.pod != before && !sameResources(d.pod, before) {
		changed = true
		l.cfg.Store.SetPod(d.pod, d.source, d.traceparent)
	}
	if pending != d.resize {
		l.tellResize(uid, d, pending)
	}
	return changed
}

// tellResize says why a pod goes on with the resources that it has, or that it does not any more.
func (l *Loop) tellResize(uid types.UID, d *desiredPod, pending podstatus.Reason) {
	if d.resize.Reason == "" {
		l.cfg.Logger.Info("a pod goes on with the resources that it has, because the node has no room for those that it asks for",
			telemetry.KeyPod, d.pod.Namespace+"/"+d.pod.Name, telemetry.KeyPodUID, string(uid), telemetry.KeyError, pending.Message)
		l.cfg.PodEvents.Warning(telemetry.WithTraceparent(context.Background(), d.traceparent), d.pod, "", eventResizeDeferred,
			"Pod resize "+pending.Reason+": "+pending.Message)
	}
	d.resize = pending
	l.cfg.Store.SetResize(uid, pending)
}

// retryResizes gives the pods that wait for it the resources that they ask for, as far as the node has room for them now.
func (l *Loop) retryResizes() {
	for _, uid := range l.oldestFirst(maps.Keys(l.desired)) {
		d := l.desired[uid]
		if d.resize.Reason == "" || d.pod.DeletionTimestamp != nil || l.cfg.Workers.Ending(uid) {
			continue
		}
		if l.allocate(uid, d) {
			l.cfg.Workers.Want(d.pod, podworkers.Cause{Kind: podworkers.CauseConfig, Traceparent: d.traceparent}, nil)
		}
	}
}

// resizeRefusal says why the node has no room for a pod as it is wanted, which goes on as it is kept otherwise; empty when it has. A
// pod that asks for no more than it has is never refused.
func (l *Loop) resizeRefusal(uid types.UID, wanted, kept *v1.Pod) string {
	if !admission.AsksForMore(wanted, kept) {
		return ""
	}
	if l.cfg.Node != nil && l.node == nil {
		return "the node's resources are not known yet"
	}
	if refusal := admission.CheckResize(admission.Request{Pod: wanted, Others: l.active(uid), Node: l.node}); refusal != nil {
		return refusal.Message
	}
	return ""
}

// asItIs returns a pod as it is wanted with the resources that it has.
func (l *Loop) asItIs(uid types.UID, d *desiredPod) *v1.Pod {
	if d.allocated {
		return d.pod
	}
	return withResources(d.wanted, l.resourcesMade(uid, d.wanted))
}

// resourcesMade are the resources that the newest containers of a pod were made with, as far as the runtime says.
func (l *Loop) resourcesMade(uid types.UID, pod *v1.Pod) resources {
	status, made := l.cfg.Store.Observed(uid), resources{}
	for name := range resourcesOf(pod) {
		if r, ok := podlabels.ResourcesOf(podview.Latest(status, name).GetAnnotations()); ok {
			made[name] = r
		}
	}
	return made
}

func resourcesOf(pod *v1.Pod) resources {
	all := resources{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			all[list[i].Name] = list[i].Resources
		}
	}
	return all
}

// withResources returns a pod with the resources that its containers have; the pod itself when that changes nothing.
func withResources(pod *v1.Pod, has resources) *v1.Pod {
	out := pod
	for _, list := range []func(*v1.PodSpec) []v1.Container{
		func(s *v1.PodSpec) []v1.Container { return s.InitContainers }, func(s *v1.PodSpec) []v1.Container { return s.Containers },
	} {
		for i, c := range list(&pod.Spec) {
			r, ok := has[c.Name]
			if !ok || sameRequirements(&r, &c.Resources) {
				continue
			}
			if out == pod {
				out = pod.DeepCopy()
			}
			to := &list(&out.Spec)[i].Resources
			to.Requests, to.Limits = r.Requests, r.Limits
		}
	}
	return out
}

func sameResources(a, b *v1.Pod) bool { return withResources(a, resourcesOf(b)) == a }

func sameRequirements(a, b *v1.ResourceRequirements) bool {
	return equality.Semantic.DeepEqual(a.Requests, b.Requests) && equality.Semantic.DeepEqual(a.Limits, b.Limits)
}
