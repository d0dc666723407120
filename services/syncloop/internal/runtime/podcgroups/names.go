package podcgroups

import (
	"fmt"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubectl/pkg/util/qos"
)

// Parts of names. They are the kubelet's.
const (
	allPods   = "kubepods"
	podPrefix = "pod"
	// slice is the suffix of a cgroup of systemd that contains others.
	slice = ".slice"
	// driverSystemd is the cgroup driver that creates cgroups through systemd.
	driverSystemd = "systemd"
)

// Names returns the names of cgroups as paths below the root of the hierarchy. They are the kubelet's, so that tools
// for a kubelet's cgroups find them:
//
//	cgroupfs  /kubepods/burstable/podUID
//	systemd   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice
//
// Guaranteed pods are directly below kubepods.
type Names struct {
	systemd bool
	root    []string
}

// NewNames returns the names for a cgroup driver, cgroupfs or systemd, below a root like "/" or "/nodes/a".
func NewNames(driver, root string) Names {
	n := Names{systemd: driver == driverSystemd}
	for part := range strings.SplitSeq(path.Clean("/"+root), "/") {
		if part != "" {
			n.root = append(n.root, part)
		}
	}
	n.root = append(n.root, allPods)
	return n
}

// Pods returns the cgroup of all pods.
func (n Names) Pods() string { return n.path() }

// Class returns the cgroup of a QoS class; for guaranteed pods that of all pods.
func (n Names) Class(class v1.PodQOSClass) string {
	if class == v1.PodQOSGuaranteed {
		return n.path()
	}
	return n.path(strings.ToLower(string(class)))
}

// Pod returns the cgroup of a pod. It fails if the pod's UID cannot be part of a name.
func (n Names) Pod(pod *v1.Pod) (string, error) {
	return n.forPod(qos.GetPodQOS(pod), pod.UID)
}

// Places returns all possible cgroups of a pod of which only the UID is known: one for each class. It returns none for
// a UID that cannot be part of a name.
func (n Names) Places(uid types.UID) []string {
	var places []string
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		if name, err := n.forPod(class, uid); err == nil {
			places = append(places, name)
		}
	}
	return places
}

func (n Names) forPod(class v1.PodQOSClass, uid types.UID) (string, error) {
	// In systemd a dash separates levels. Therefore a dash in a UID is replaced by an underscore, and a UID that has an
	// underscore could be that of another pod.
	if uid == "" || strings.ContainsAny(string(uid), "/\x00") || n.systemd && strings.Contains(string(uid), "_") {
		return "", fmt.Errorf("metadata.uid: %q cannot name a cgroup: leave it out, or use letters, digits and dashes", uid)
	}
	parts := []string{podPrefix + string(uid)}
	if class != v1.PodQOSGuaranteed {
		parts = []string{strings.ToLower(string(class)), parts[0]}
	}
	return n.path(parts...), nil
}

func (n Names) path(below ...string) string {
	parts := append(append([]string{}, n.root...), below...)
	if !n.systemd {
		return "/" + path.Join(parts...)
	}
	var out strings.Builder
	var unit string
	for _, part := range parts {
		if unit != "" {
			unit += "-"
		}
		unit += strings.ReplaceAll(part, "-", "_")
		out.WriteString("/" + unit + slice)
	}
	return out.String()
}
