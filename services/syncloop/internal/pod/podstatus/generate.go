package podstatus

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/qos"
	"k8s.io/utils/net"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// Generate computes the status of a pod. Its phases, reasons and messages are the kubelet's, because kubectl and
// controllers read them.
func Generate(pod *v1.Pod, status *lifecyclev1.PodStatus, in Inputs) v1.PodStatus {
	g := &generation{pod: pod, status: status, in: in}
	if g.in.RuntimeName == "" {
		g.in.RuntimeName = "containerd"
	}
	g.again = g.restartsAll()
	out := v1.PodStatus{ObservedGeneration: g.observedGeneration(), QOSClass: qos.GetPodQOS(pod)}
	out.InitContainerStatuses = g.containerStatuses(pod.Spec.InitContainers, in.Previous.InitContainerStatuses, true)
	out.ContainerStatuses = g.containerStatuses(pod.Spec.Containers, in.Previous.ContainerStatuses, false)
	out.EphemeralContainerStatuses = g.ephemeralStatuses()
	slices.SortFunc(out.ContainerStatuses, func(a, b v1.ContainerStatus) int {
		switch {
		case a.Name < b.Name:
			return -1
		case a.Name > b.Name:
			return 1
		}
		return 0
	})
	out.Phase = g.phase(out)
	if in.Terminal {
		g.end(&out)
	}
	out.Resources, out.AllocatedResources = g.podResources(out.Phase)
	out.Reason, out.Message = g.reason(out.Phase)
	out.StartTime = g.startTime()
	out.VolumeHealth = g.volumeHealth()
	out.Conditions = g.conditions(out)
	g.addresses(&out)
	return out
}

// generation is one run of Generate.
type generation struct {
	pod    *v1.Pod
	status *lifecyclev1.PodStatus
	in     Inputs
	// again is true while all containers of the pod are restarted.
	again bool
}

// reason returns the reason and message of the pod. Those of an ended pod stay. A reason that delays a pod disappears
// when the delay is over, or when the pod ends.
func (g *generation) reason(phase v1.PodPhase) (reason, message string) {
	switch phase {
	case v1.PodPending:
		if g.in.Reason == "" && g.in.Message == "" && !holdsUp(g.pod.Status.Reason) {
			return g.pod.Status.Reason, g.pod.Status.Message // set by another component
		}
		return g.in.Reason, g.in.Message
	case v1.PodRunning:
		return g.in.Reason, g.in.Message
	case v1.PodSucceeded, v1.PodFailed, v1.PodUnknown:
	}
	if phase == g.in.Previous.Phase && (g.in.Previous.Reason != "" || g.in.Previous.Message != "") {
		return g.in.Previous.Reason, g.in.Previous.Message
	}
	if phase == g.pod.Status.Phase {
		return g.pod.Status.Reason, g.pod.Status.Message
	}
	return "", ""
}

// startTime returns the start of the pod on this node: the creation of its first sandbox, which the runtime reports
// after any restart, or, until there is one, the time at which the pod was first seen.
func (g *generation) startTime() *metav1.Time {
	if began := podview.Started(g.status); !began.IsZero() {
		return &metav1.Time{Time: began}
	}
	for _, known := range []*metav1.Time{g.in.Previous.StartTime, g.pod.Status.StartTime} {
		if known != nil && !known.IsZero() {
			return known.DeepCopy()
		}
	}
	return &metav1.Time{Time: g.in.Now}
}

// addresses sets the addresses of the pod and the host.
func (g *generation) addresses(out *v1.PodStatus) {
	for _, ip := range g.in.HostIPs {
		out.HostIPs = append(out.HostIPs, v1.HostIP{IP: ip})
	}
	if len(out.HostIPs) > 0 {
		out.HostIP = out.HostIPs[0].IP
	}
	ips := g.status.GetIps()
	if g.pod.Spec.HostNetwork {
		ips = g.in.HostIPs
		if old := g.in.Previous.PodIPs; len(old) > 0 { // they stay as first observed
			ips = []string{old[0].IP}
			for _, ip := range g.in.HostIPs {
				if net.IPFamilyOfString(ip) != net.IPFamilyOfString(ips[0]) {
					ips = append(ips, ip)
					break
				}
			}
		}
	}
	for _, ip := range preferFamily(ips, out.HostIP) {
		out.PodIPs = append(out.PodIPs, v1.PodIP{IP: ip})
	}
	if len(out.PodIPs) > 0 {
		out.PodIP = out.PodIPs[0].IP
	}
}

// preferFamily moves addresses of the family of the host's primary address to the front, and keeps one of each family.
func preferFamily(ips []string, host string) []string {
	if len(ips) < 2 || host == "" {
		return ips
	}
	family := net.IPFamilyOfString(host)
	var same, other []string
	for _, ip := range ips {
		if net.IPFamilyOfString(ip) == family {
			same = append(same, ip)
		} else {
			other = append(other, ip)
		}
	}
	return append(same[:min(1, len(same))], other[:min(1, len(other))]...)
}
