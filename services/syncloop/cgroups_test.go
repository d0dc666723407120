package syncloop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/runtimewatch"
)

// TestTheRuntimesCgroupDriverIsTaken checks that either driver in the configuration works with a runtime of the other
// one.
func TestTheRuntimesCgroupDriverIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		configured string
		runtime    runtimeapi.CgroupDriver
		parent     string
	}{
		"the runtime has systemd":  {"cgroupfs", runtimeapi.CgroupDriver_SYSTEMD, "kubepods.slice"},
		"the runtime has cgroupfs": {"systemd", runtimeapi.CgroupDriver_CGROUPFS, "/kubepods"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.cfg.Kubelet.CgroupDriver = c.configured
			m.cri.SetCgroupDriver(c.runtime)
			m.put(newPod("u1", "web", "a"))
			m.configmux.speak()
			m.start()
			m.eventually("web is ready", m.ready("u1"))
			for _, sandbox := range m.cri.Sandboxes() {
				config, _ := m.cri.SandboxConfig(sandbox)
				if parent := config.GetLinux().GetCgroupParent(); parent != c.parent {
					t.Errorf("the pod is in %q, want %q", parent, c.parent)
				}
			}
		})
	}
}

// TestALateRuntimeWithAnotherCgroupDriver checks that the process ends if the runtime, once it answers, has another
// driver than the configuration. The next start then uses the runtime's driver.
func TestALateRuntimeWithAnotherCgroupDriver(t *testing.T) {
	m := newMachine(t)
	m.cri.Stop()
	m.cri.SetCgroupDriver(runtimeapi.CgroupDriver_SYSTEMD)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, m.cfg, m.tel) }()
	m.eventually("it serves without a runtime", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", m.cfg.Kubelet.ReadOnlyPort))
		return err == nil && conn.Close() == nil
	})
	if err := m.cri.Start(); err != nil {
		t.Fatal(err)
	}
	var driver *runtimewatch.DriverError
	if err := <-ended; !errors.As(err, &driver) || driver.Runtime != "systemd" || driver.Own != "cgroupfs" {
		t.Errorf("it ended with %v, want a %T, driver.Runtime %q and driver.Own %q", err, driver, "systemd", "cgroupfs")
	}
}
