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
		if !slices.Equal(k.EnforceNodeAllocatable, want) ||
			*k.CgroupsPerQOS == strings.Contains(content, "cgroupsPerQOS: false") {
			t.Errorf(
				"%q: enforceNodeAllocatable is %v and cgroupsPerQOS %v",
				content,
				k.EnforceNodeAllocatable,
				*k.CgroupsPerQOS,
			)
		}
	}
}

func TestReservationsAreEnforced(t *testing.T) {
	cfg := parse(
		t,
		SyncLoop,
		"--config",
		kubeletFile(
			t,
			"enforceNodeAllocatable: [pods, kube-reserved, system-reserved-compressible]\nkubeReservedCgroup: /kube\nsystemReservedCgroup: /system",
		),
	)
	if len(cfg.Unsupported) > 0 {
		t.Errorf("named as not acted on: %v", cfg.Unsupported)
	}
	if whole, compressible := EnforcesReservation(&cfg.Kubelet, "kube"); !whole || compressible {
		t.Errorf("kube: %t, %t, want true and false", whole, compressible)
	}
	if whole, compressible := EnforcesReservation(&cfg.Kubelet, "system"); whole || !compressible {
		t.Errorf("system: %t, %t, want false and true", whole, compressible)
	}
}

func TestMemoryIsReservedForClassesOnlyWithTheGate(t *testing.T) {
	cfg := parse(t, SyncLoop, "--config", kubeletFile(t, "qosReserved: {memory: 40%}\nfeatureGates: {QOSReserved: true}"))
	if got := ReservedMemoryPercent(&cfg.Kubelet); got != 40 || len(cfg.Unsupported) > 0 {
		t.Errorf("%d%%, and %v are named", got, cfg.Unsupported)
	}
	file := kubeletFile(t, "qosReserved: {memory: 40%}")
	cfg = parse(t, SyncLoop, "--config", file)
	if got, want := cfg.Unsupported, []string{
		file + ":3: qosReserved: needs the feature gate QOSReserved",
	}; ReservedMemoryPercent(&cfg.Kubelet) != 0 ||
		!slices.Equal(got, want) {
		t.Errorf("%d%%, and %v are named, want %v", ReservedMemoryPercent(&cfg.Kubelet), got, want)
	}
	_, errs := Decode("f", []byte(head+"qosReserved: {cpu: 10%, memory: 101%}\n"))
	if got, want := Errors(errs).Error(),
		"f:3: qosReserved.cpu: cannot be reserved: must be memory"; len(errs) != 2 ||
		!strings.Contains(got, want) {
		t.Errorf("Errors() = %s, want len(errs) 2 and with %q", got, want)
	}
}

func TestTheRootOfCgroupsCanBeGivenByAFlag(t *testing.T) {
	file := kubeletFile(t, "cgroupRoot: /file")
	if got := parse(t, SyncLoop, "--config", file, "--cgroup-root", "/flag").Kubelet.CgroupRoot; got != "/flag" {
		t.Errorf("got %s, want %q", got, "/flag")
	}
	if _, err := Parse(
		SyncLoop,
		[]string{"--hostname-override", "n", "--cgroup-root", "flag/"},
		os.Stderr,
	); err == nil ||
		!strings.Contains(err.Error(), "--cgroup-root") {
		t.Errorf("a relative one: %v", err)
	}
}

// kubeletFile writes a configuration, and returns its path.
func kubeletFile(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(
		file,
		[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+content+"\n"),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	return file
}
