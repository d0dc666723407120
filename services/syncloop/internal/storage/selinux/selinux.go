// Package selinux decides with which SELinux label a volume is mounted (mount -o context=LABEL), so that its files need
// not be labeled one by one. The rules, the texts of errors and the metrics are the kubelet's. On a machine without
// SELinux nothing has a label.
package selinux

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Host is the SELinux of a machine.
type Host interface {
	// Enabled reports whether the machine has SELinux.
	Enabled() bool
	// FileLabel returns the label of files that the processes of a container with these options may use. It fills in what
	// the options leave out.
	FileLabel(options *v1.SELinuxOptions) (string, error)
	// HasLabels reports whether files at a path can have labels of their own, by the mount that they are on.
	HasLabels(path string) (bool, error)
}

// Volume is a volume of a pod.
type Volume struct {
	Pod *v1.Pod
	// Name is that of the volume in the pod's spec.
	Name string
	// PV is its persistent volume; nil for a volume inline.
	PV *v1.PersistentVolume
	// Supported is true if the kind of the volume can be mounted with a label.
	Supported bool
}

// Labels decides the labels of volumes.
type Labels struct {
	// Host is the machine. Required.
	Host Host
	// EveryMode is true if volumes of every access mode are mounted with labels (feature gate SELinuxMount). Otherwise
	// those are for which ReadWriteOncePod is the only access mode.
	EveryMode bool
	// Metrics counts what goes wrong. Required.
	Metrics *Metrics
}

// Label returns the label to mount a volume with; empty for none. wanted is the label that it would have if volumes of
// every access mode had one. It fails for a volume that the containers of the pod cannot share.
func (l *Labels) Label(v Volume) (label, wanted string, err error) {
	if !l.Host.Enabled() {
		return "", "", nil
	}
	effective := l.isEffective(v.PV)
	labels, err := l.labelsOf(v)
	switch {
	case err != nil:
		return "", "", l.Metrics.containers.count(effective, err, accessMode(v.PV))
	case len(labels) > 1:
		err := fmt.Errorf("multiple SELinux labels found: %s", strings.Join(labels, ","))
		return "", "", l.Metrics.pods.count(effective, err, accessMode(v.PV))
	case len(labels) == 0 || !v.Supported || optsOut(v.Pod):
		return "", "", nil
	case !effective:
		return "", labels[0], nil
	}
	return labels[0], labels[0], nil
}

// Conflict fails if a volume has another label than it has for the pods that use it already.
func (l *Labels) Conflict(v Volume, plugin, theirs, ours string) error {
	if !v.Supported || theirs == ours || !l.Host.Enabled() {
		return nil
	}
	err := fmt.Errorf("conflicting SELinux labels of volume %s: %q and %q", v.PV.Name, theirs, ours)
	return l.Metrics.volumes.count(l.isEffective(v.PV), err, plugin, accessMode(v.PV))
}

// Admitted counts a volume with a label.
func (l *Labels) Admitted(v Volume, plugin string) {
	l.Metrics.admitted.WithLabelValues(plugin, accessMode(v.PV)).Add(1)
}

// isEffective reports whether a volume is mounted with a label, by its access modes.
func (l *Labels) isEffective(pv *v1.PersistentVolume) bool {
	return pv != nil && (l.EveryMode || slices.Equal(pv.Spec.AccessModes,
		[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}))
}

// labelsOf returns the labels of the containers that mount a volume and have SELinux options, each once, sorted.
func (l *Labels) labelsOf(v Volume) ([]string, error) {
	var labels []string
	for _, options := range optionsOf(v.Pod, v.Name) {
		label, err := l.Host.FileLabel(options)
		if err != nil {
			return nil, fmt.Errorf("failed to construct SELinux label from context %q: %w", options, err)
		}
		labels = append(labels, label)
	}
	slices.Sort(labels)
	return slices.Compact(labels), nil
}

// optionsOf returns the SELinux options of the containers that mount a volume: their own, or else the pod's.
func optionsOf(pod *v1.Pod, volume string) []*v1.SELinuxOptions {
	var all []*v1.SELinuxOptions
	note := func(mounts []v1.VolumeMount, sc *v1.SecurityContext) {
		if !slices.ContainsFunc(mounts, func(m v1.VolumeMount) bool { return m.Name == volume }) {
			return
		}
		switch {
		case sc != nil && sc.SELinuxOptions != nil:
			all = append(all, sc.SELinuxOptions)
		case pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.SELinuxOptions != nil:
			all = append(all, pod.Spec.SecurityContext.SELinuxOptions)
		}
	}
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			note(containers[i].VolumeMounts, containers[i].SecurityContext)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		note(c.VolumeMounts, c.SecurityContext)
	}
	return all
}

// optsOut reports whether a pod has its volumes labeled file by file.
func optsOut(pod *v1.Pod) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && sc.SELinuxChangePolicy != nil && *sc.SELinuxChangePolicy == v1.SELinuxChangePolicyRecursive
}

// accessMode returns the widest access mode of a volume, as the kubelet's metrics have it.
func accessMode(pv *v1.PersistentVolume) string {
	if pv == nil {
		return "inline"
	}
	for _, mode := range []struct {
		mode v1.PersistentVolumeAccessMode
		name string
	}{
		{v1.ReadWriteMany, "RWX"}, {v1.ReadOnlyMany, "ROX"}, {v1.ReadWriteOnce, "RWO"}, {v1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(pv.Spec.AccessModes, mode.mode) {
			return mode.name
		}
	}
	return ""
}

// MountOption returns the option of a mount with a label. The quotes are for the comma in it.
func MountOption(label string) string { return fmt.Sprintf("context=%q", label) }
