package csi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/test/eventually"
)

// TestNothingIsUnstagedWhileThePodsCannotBeListed starts a process that cannot list the directory of all pods. It does
// not take staged volumes for unused: it calls no driver, reports no volumes in use, and says why. When the directory
// can be listed again, the volumes are those that they were.
func TestNothingIsUnstagedWhileThePodsCannotBeListed(t *testing.T) {
	r := newRig(t, canStage)
	request := r.request(newPod("uid-1"), newPV("pv-1", "disk-1"))
	r.mount(request)
	r.stop()
	pods := filepath.Join(r.root, "pods")
	must(t, os.Rename(pods, pods+"-aside"))
	must(t, os.Symlink("pods", pods)) // of which no read succeeds
	steps := clocktesting.NewFakeClock(time.Now())
	r.clock = steps
	calls := len(r.driver.Calls(""))
	r.start()
	for range 10 { // it tries again meanwhile
		eventually.That(t, "it waits", steps.HasWaiters)
		steps.Step(5 * time.Second)
	}
	if err := r.plugin.Unread(); err == nil || !strings.Contains(err.Error(), pods) {
		t.Errorf("it does not say what it cannot list: %v", err)
	}
	if _, known := r.plugin.VolumesInUse(); known || !r.plugin.Uses(driverName, "disk-1") || len(r.plugin.Unused()) > 0 {
		t.Error("the use of volumes is taken for known")
	}
	if _, err := r.plugin.Mount(t.Context(), request); err == nil {
		t.Error("a volume is mounted")
	}
	if err := r.plugin.Unmount(t.Context(), request.Dir); err == nil {
		t.Error("a volume is unmounted")
	}
	if got := r.driver.Calls(""); len(got) != calls {
		t.Errorf("calls of the driver: %v", got[calls:])
	}
	exchange(t, pods, pods+"-aside")
	must(t, os.Remove(pods+"-aside"))
	eventually.That(t, "the records are known", func() bool {
		steps.Step(time.Second)
		return r.plugin.Unread() == nil
	})
	for _, method := range []string{"NodeUnstageVolume", "NodeUnpublishVolume"} {
		if got := r.driver.Calls(method); len(got) > 0 {
			t.Errorf("calls of %s: %v", method, got)
		}
	}
	r.mount(request)
	if got := r.driver.Calls("NodePublishVolume"); len(got) != 1 {
		t.Errorf("the volume was published again: %v", got)
	}
	r.unmount(request.Dir)
	eventually.That(t, "it is unstaged", func() bool {
		steps.Step(time.Second)
		return len(r.driver.Calls("NodeUnstageVolume")) == 1
	})
	r.ends()
}
