package podstatus_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podviewtest"
)

func TestHowVolumesAreMountedIsShown(t *testing.T) {
	enabled, possible := v1.RecursiveReadOnlyEnabled, v1.RecursiveReadOnlyIfPossible
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "a", VolumeMounts: []v1.VolumeMount{
		{Name: "data", MountPath: "/w"}, {Name: "data", MountPath: "/r", ReadOnly: true},
		{Name: "data", MountPath: "/must", ReadOnly: true, RecursiveReadOnly: &enabled},
		{Name: "data", MountPath: "/may", ReadOnly: true, RecursiveReadOnly: &possible},
	}}}}}
	for noted, want := range map[string][]string{
		"no container": {"", "Disabled", "Enabled", "Disabled"},
		"":             {"", "Disabled", "Disabled", "Disabled"}, // as another version created it
		"2":            {"", "Disabled", "Enabled", "Disabled"},
		"2,3":          {"", "Disabled", "Enabled", "Enabled"},
	} {
		status := podviewtest.Status(pod, "s0:ready a@s0:running")
		status.Containers[0].Annotations = map[string]string{podlabels.RecursiveReadOnly: noted}
		if noted == "no container" {
			status = nil
		}
		var got []string
		for i, m := range podstatus.Generate(pod, status, podstatus.Inputs{Now: now}).ContainerStatuses[0].VolumeMounts {
			spec := pod.Spec.Containers[0].VolumeMounts[i]
			if m.Name != spec.Name || m.MountPath != spec.MountPath || m.ReadOnly != spec.ReadOnly {
				t.Errorf("%q: %v is shown as %v, want Name %v, MountPath %v and ReadOnly %v",
					noted, spec, m, spec.Name, spec.MountPath, spec.ReadOnly)
			}
			got = append(got, string(ptr.Deref(m.RecursiveReadOnly, "")))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", noted, got, want)
		}
	}
}
