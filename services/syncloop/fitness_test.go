package syncloop

import (
	"os"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// TestAMachineThatTheConfigurationDoesNotPermit checks that syncloop fails before it changes anything.
func TestAMachineThatTheConfigurationDoesNotPermit(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		t.Skip("this machine has cgroup v2, which every configuration permits")
	}
	m := newMachine(t)
	m.cfg.Kubelet.FailCgroupV1 = ptr.To(true)
	m.cfg.Kubelet.SingleProcessOOMKill = ptr.To(false)
	err := run(t.Context(), m.cfg, m.tel)
	for _, want := range []string{"failCgroupV1: ", "singleProcessOOMKill: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}
