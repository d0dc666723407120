package podcgroups_test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/podcgroups"
)

func TestNamesAreTheKubelets(t *testing.T) {
	besteffort := podtest.Pod("1234-ab", podtest.Container(nil, nil))
	burstable := podtest.Pod("1234-ab", podtest.Container(podtest.List("cpu", "1"), nil))
	all := podtest.List("cpu", "1", "memory", "1Mi")
	guaranteed := podtest.Pod("1234-ab", podtest.Container(all, all))
	for _, tc := range []struct {
		driver, root string
		pod          *v1.Pod
		want         string
	}{
		{"cgroupfs", "", guaranteed, "/kubepods/pod1234-ab"},
		{"cgroupfs", "/", burstable, "/kubepods/burstable/pod1234-ab"},
		{"cgroupfs", "/", besteffort, "/kubepods/besteffort/pod1234-ab"},
		{"cgroupfs", "/nodes/a-b/", burstable, "/nodes/a-b/kubepods/burstable/pod1234-ab"},
		{"cgroupfs", "nodes", guaranteed, "/nodes/kubepods/pod1234-ab"},
		{"systemd", "/", guaranteed, "/kubepods.slice/kubepods-pod1234_ab.slice"},
		{"systemd", "", burstable, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_ab.slice"},
		{"systemd", "/", besteffort, "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1234_ab.slice"},
		{
			"systemd", "/nodes/a-b", burstable,
			"/nodes.slice/nodes-a_b.slice/nodes-a_b-kubepods.slice/nodes-a_b-kubepods-burstable.slice/nodes-a_b-kubepods-burstable-pod1234_ab.slice",
		},
	} {
		names := podcgroups.NewNames(tc.driver, tc.root)
		got, err := names.Pod(tc.pod)
		if err != nil || got != tc.want {
			t.Errorf("%s %q: got %s, %v, want %s", tc.driver, tc.root, got, err, tc.want)
		}
		if !slices.Contains(names.Places(tc.pod.UID), got) {
			t.Errorf("%s %q: %s is not among the places where the pod is looked for: %v", tc.driver, tc.root, got, names.Places(tc.pod.UID))
		}
		if !strings.HasPrefix(got, names.Class(v1.PodQOSGuaranteed)) || names.Pods() != names.Class(v1.PodQOSGuaranteed) {
			t.Errorf("%s %q: %s is not below %s", tc.driver, tc.root, got, names.Pods())
		}
	}
}

// TestAUIDThatNamesSomethingElseIsRefused checks this because a manifest may give a pod any UID.
func TestAUIDThatNamesSomethingElseIsRefused(t *testing.T) {
	for _, tc := range []struct {
		driver, uid string
		refused     bool
	}{
		{"cgroupfs", "", true}, {"cgroupfs", "../../x", true}, {"cgroupfs", "a\x00", true}, {"cgroupfs", "a_b", false},
		{"systemd", "a_b", true}, {"systemd", "a-b", false},
	} {
		names := podcgroups.NewNames(tc.driver, "/")
		_, err := names.Pod(podtest.Pod(tc.uid, podtest.Container(nil, nil)))
		if (err != nil) != tc.refused || (len(names.Places(podtest.Pod(tc.uid).UID)) == 0) != tc.refused {
			t.Errorf("%s: UID %q: %v, %v, want refused: %t",
				tc.driver, tc.uid, err, names.Places(podtest.Pod(tc.uid).UID), tc.refused)
		}
		if err != nil && !strings.Contains(err.Error(), "metadata.uid") {
			t.Errorf("the field is not named: %v", err)
		}
	}
}
