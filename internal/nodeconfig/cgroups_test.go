package nodeconfig

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPodsAreLimitedTogetherWhereTheyHaveCgroups(t *testing.T) {
	for content, want := range map[string][]string{
		"":                           {"pods"},
		"cgroupsPerQOS: false":       nil,
		"enforceNodeAllocatable: []": {},
		"enforceNodeAllocatable: [none]\ncgroupsPerQOS: false": {"none"},
	} {
		k := parse(t, SyncLoop, "--config", kubeletFile(t, content)).Kubelet
		if !slices.Equal(k.EnforceNodeAllocatable, want) || *k.CgroupsPerQOS == strings.Contains(content, "cgroupsPerQOS: false") {
			t.Errorf("%q: enforceNodeAllocatable is %v and cgroupsPerQOS %v", content, k.EnforceNodeAllocatable, *k.CgroupsPerQOS)
		}
	}
}

func TestAReservationThatIsNotEnforcedIsNamed(t *testing.T) {
	file := kubeletFile(t, "enforceNodeAllocatable: [pods, kube-reserved]\nkubeReservedCgroup: /kube\npodPidsLimit: 100")
	if got, want := parse(t, SyncLoop, "--config", file).Unsupported, []string{
		file + ":4: kubeReservedCgroup", file + ":3: enforceNodeAllocatable: kube-reserved",
	}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := parse(t, PLEG, "--config", file).Unsupported; len(got) > 0 {
		t.Errorf("pleg names %v", got)
	}
}

func TestTheRootOfCgroupsCanBeGivenByAFlag(t *testing.T) {
	file := kubeletFile(t, "cgroupRoot: /file")
	if got := parse(t, SyncLoop, "--config", file, "--cgroup-root", "/flag").Kubelet.CgroupRoot; got != "/flag" {
		t.Errorf("got %s", got)
	}
	if _, err := Parse(SyncLoop, []string{"--hostname-override", "n", "--cgroup-root", "flag/"}, os.Stderr); err == nil || !strings.Contains(err.Error(), "--cgroup-root") {
		t.Errorf("a relative one: %v", err)
	}
}

// kubeletFile writes a configuration, and returns its path.
func kubeletFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+content+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
