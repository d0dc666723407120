package selinux_test

import (
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
)

// host is a machine with SELinux.
type host struct{ off bool }

func (h host) Enabled() bool                { return !h.off }
func (host) HasLabels(string) (bool, error) { return true, nil }
func (host) FileLabel(o *v1.SELinuxOptions) (string, error) {
	if o.Level == "bad" {
		return "", errors.New("no such level")
	}
	return "system_u:object_r:container_file_t:" + o.Level, nil
}

// podWith returns a pod whose containers mount a volume, with the levels of the pod and of each container; empty for
// none.
func podWith(level string, containers ...string) *v1.Pod {
	pod := &v1.Pod{}
	if level != "" {
		pod.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
	}
	for _, level := range containers {
		c := v1.Container{VolumeMounts: []v1.VolumeMount{{Name: "data"}}}
		if level != "" {
			c.SecurityContext = &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	return pod
}

func optingOut(pod *v1.Pod) *v1.Pod {
	pod.Spec.SecurityContext.SELinuxChangePolicy = ptr.To(v1.SELinuxChangePolicyRecursive)
	return pod
}

// counts returns the metrics that are not zero.
func counts(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()[len("volume_manager_selinux_"):]
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			all[name] = m.GetGauge().GetValue()
		}
	}
	return all
}

func TestTheLabelOfAVolume(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1"
	modes := func(all ...v1.PersistentVolumeAccessMode) *v1.PersistentVolume {
		return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
			Spec: v1.PersistentVolumeSpec{AccessModes: all}}
	}
	one, many := modes(v1.ReadWriteOncePod), modes(v1.ReadWriteOnce, v1.ReadWriteMany)
	elsewhere := podWith("s0:c1", "")
	elsewhere.Spec.InitContainers = []v1.Container{{
		VolumeMounts:    []v1.VolumeMount{{Name: "other"}},
		SecurityContext: &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: "s0:c2"}},
	}}
	for _, test := range []struct {
		name                string
		pod                 *v1.Pod
		pv                  *v1.PersistentVolume
		unsupported, narrow bool
		off                 bool
		label, wanted, fail string
		counts              string
	}{
		{name: "of the pod", pod: podWith("s0:c1", ""), pv: many, label: label, wanted: label},
		{name: "of a container", pod: podWith("s0:c2", "s0:c1"), pv: many, label: label, wanted: label},
		{name: "of two containers", pod: podWith("", "s0:c1", "s0:c1"), pv: many, label: label, wanted: label},
		{name: "of another container", pod: elsewhere, pv: many, label: label, wanted: label},
		{name: "unknown", pod: podWith("", ""), pv: many},
		{name: "without SELinux", pod: podWith("s0:c1", ""), pv: many, off: true},
		{name: "of a driver without support", pod: podWith("s0:c1", ""), pv: many, unsupported: true},
		{name: "of a pod that opts out", pod: optingOut(podWith("s0:c1", "")), pv: one},
		{name: "for one pod, by the older gate", pod: podWith("s0:c1", ""), pv: one, narrow: true, label: label, wanted: label},
		{name: "for many, by the older gate", pod: podWith("s0:c1", ""), pv: many, narrow: true, wanted: label},
		{name: "inline", pod: podWith("s0:c1", ""), wanted: label},
		{name: "two", pod: podWith("s0:c1", "", "s0:c2"), pv: many, counts: "pod_context_mismatch_errors_total RWX",
			fail: "multiple SELinux labels found: " + label + ",system_u:object_r:container_file_t:s0:c2"},
		{name: "two, by the older gate", pod: podWith("s0:c1", "", "s0:c2"), pv: many, narrow: true,
			counts: "pod_context_mismatch_warnings_total RWX"},
		{name: "two inline", pod: podWith("s0:c1", "", "s0:c2"), counts: "pod_context_mismatch_warnings_total inline"},
		{name: "wrong", pod: podWith("bad", ""), pv: one, counts: "container_errors_total RWOP",
			fail: `failed to construct SELinux label from context "&SELinuxOptions{User:,Role:,Type:,Level:bad,}": no such level`},
		{name: "wrong inline", pod: podWith("bad", ""), counts: "container_warnings_total inline"},
	} {
		registry := prometheus.NewRegistry()
		labels := selinux.Labels{
			Host: host{test.off}, EveryMode: !test.narrow, Metrics: selinux.NewMetrics(registry),
		}
		got, wanted, err := labels.Label(selinux.Volume{
			Pod: test.pod, Name: "data", PV: test.pv, Supported: !test.unsupported,
		})
		text := ""
		if err != nil {
			text = err.Error()
		}
		if got != test.label || wanted != test.wanted || text != test.fail {
			t.Errorf("%s: %q, %q, %q; want %q, %q, %q", test.name, got, wanted, text, test.label, test.wanted, test.fail)
		}
		if all := counts(t, registry); test.counts == "" && len(all) > 0 ||
			test.counts != "" && (len(all) != 1 || all[test.counts] != 1) {
			t.Errorf("%s: counted %v, want %q", test.name, all, test.counts)
		}
	}
}

func TestAConflictOfLabels(t *testing.T) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
	}}
	v := selinux.Volume{PV: pv, Supported: true}
	registry := prometheus.NewRegistry()
	labels := selinux.Labels{Host: host{}, EveryMode: true, Metrics: selinux.NewMetrics(registry)}
	err := labels.Conflict(v, "kubernetes.io/csi/d", "a", "b")
	if err == nil || err.Error() != `conflicting SELinux labels of volume pv-1: "a" and "b"` {
		t.Errorf("got %v", err)
	}
	if err := labels.Conflict(v, "kubernetes.io/csi/d", "a", "a"); err != nil {
		t.Errorf("the same label: %v", err)
	}
	labels.EveryMode = false
	if err := labels.Conflict(v, "kubernetes.io/csi/d", "a", ""); err != nil {
		t.Errorf("of labels that are not used: %v", err)
	}
	labels.Admitted(v, "kubernetes.io/csi/d")
	for _, name := range []string{
		"volume_context_mismatch_errors_total RWO kubernetes.io/csi/d", "volume_context_mismatch_warnings_total RWO kubernetes.io/csi/d",
		"volumes_admitted_total RWO kubernetes.io/csi/d",
	} {
		if all := counts(t, registry); all[name] != 1 {
			t.Errorf("counted %v, want one %s", all, name)
		}
	}
}

// TestTheLabelsOfThisMachine checks that the library works here; with SELinux, that it fills in what is left out.
func TestTheLabelsOfThisMachine(t *testing.T) {
	label, err := selinux.Machine{}.FileLabel(&v1.SELinuxOptions{Level: "s0:c1,c2"})
	if err != nil || (label != "") != (selinux.Machine{}).Enabled() {
		t.Errorf("got %q, %v", label, err)
	}
	if has, err := (selinux.Machine{}).HasLabels(t.TempDir()); err != nil || has && !(selinux.Machine{}).Enabled() {
		t.Errorf("files have labels: %t, %v", has, err)
	}
	if err := selinux.Share(t.TempDir()); err != nil {
		t.Error(err)
	}
}
