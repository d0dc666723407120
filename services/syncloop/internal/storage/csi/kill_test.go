package csi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/killpoint"
	"google.golang.org/grpc"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/clock"
)

// killRoot and killSocket are the root directory and the driver's socket of the process that is killed, and killBlock
// is set if its volume is a block device.
const (
	killRoot   = "CSI_TEST_ROOT"
	killSocket = "CSI_TEST_SOCKET"
	killBlock  = "CSI_TEST_BLOCK"
)

// life mounts a volume for two pods, unmounts it, and waits until it is unstaged.
func (r *rig) life() {
	r.t.Helper()
	one, two := r.pair(os.Getenv(killBlock) != "")
	r.obtain(one)
	r.obtain(two)
	r.unmount(one.Dir)
	r.unmount(two.Dir)
	eventually.That(r.t, "it is unstaged", func() bool { return len(r.left()) == 0 })
}

// pair returns the requests of two pods for one volume.
func (r *rig) pair(block bool) (one, two persistentvolumes.Request) {
	if block {
		return r.blockRequest(newPod("u1"), "pv-1"), r.blockRequest(newPod("u2"), "pv-1")
	}
	pv := newPV("pv-1", "vol-1")
	return r.request(newPod("u1"), pv), r.request(newPod("u2"), pv)
}

// obtain mounts a volume, or maps a block device, and checks that it is there.
func (r *rig) obtain(request persistentvolumes.Request) {
	r.t.Helper()
	if !request.Block {
		r.mount(request)
		return
	}
	path, err := r.plugin.Mount(r.t.Context(), request)
	if err != nil {
		r.t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeDevice == 0 {
		r.t.Fatalf("%s is %v, %v, want a device", path, info, err)
	}
}

// TestAKillAnywhereLeavesNothingBehind kills a process before each system call that changes something on disk. A record
// is written before and after each call of the driver, so that this is between any two calls too.
func TestAKillAnywhereLeavesNothingBehind(t *testing.T) {
	if root := os.Getenv(killRoot); root != "" {
		r := &rig{
			t: t, root: root, timeout: 30 * time.Second, clock: clock.RealClock{},
			drivers: &drivers{conns: map[string]*grpc.ClientConn{}},
			cluster: &cluster{drivers: map[string]*storagev1.CSIDriver{driverName: newObject()}},
		}
		r.drivers.register(t, driverName, os.Getenv(killSocket))
		r.start()
		r.life()
		r.stop()
		r.drivers.register(t, driverName, "")
		return
	}
	killEverywhere(t, false, 20)
}

// TestAKillAnywhereLeavesNothingOfABlockDevice does the same with a block device, whose mounts and loop devices outlive
// the process.
func TestAKillAnywhereLeavesNothingOfABlockDevice(t *testing.T) {
	needsLoops(t)
	killEverywhere(t, true, 40)
}

// killEverywhere kills a process before each of its calls, of which there are at least some.
func killEverywhere(t *testing.T, block bool, some int) {
	t.Helper()
	calls := killedAt(t, 0, block, false)
	if len(calls) < some {
		t.Fatalf("only %d calls change something:\n%s", len(calls), strings.Join(calls, "\n"))
	}
	for n := 1; n <= len(calls); n++ {
		for _, comesBack := range []bool{true, false} {
			killedAt(t, n, block, comesBack)
		}
	}
}

// killedAt kills a process before its nth call, or not at all if n is 0, and lets the next process take over.
func killedAt(t *testing.T, n int, block, comesBack bool) (calls []string) {
	t.Helper()
	r := newRig(t, canStage)
	r.stop()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKillAnywhereLeavesNothingBehind$")
	cmd.Env = append(os.Environ(), killRoot+"="+r.root, killSocket+"="+r.driver.Socket())
	if block {
		t.Cleanup(func() { detachAll(r) })
		cmd.Env = append(cmd.Env, killBlock+"=true")
	}
	tr := &killpoint.Tracer{Root: r.root, Kill: n}
	status := tr.Run(t, cmd)
	// The last calls differ from run to run, because Run unstages beside the end of Unmount.
	complete := len(tr.Calls) < n && status.ExitStatus() == 0
	if status.Signaled() != (n > 0) && !complete || n == 0 && status.ExitStatus() != 0 {
		t.Fatalf("the process ended with %#x after\n%s", status, strings.Join(tr.Calls, "\n"))
	}
	r.start()
	killed := tr.Calls[max(min(n, len(tr.Calls)), 1)-1]
	one, two := r.pair(block)
	if comesBack {
		r.obtain(one)
		r.obtain(two)
		at := mountsBelow(t, filepath.Join(r.root, "pods"))
		if block {
			at = loops(t, filepath.Join(r.root, "plugins"))
		}
		if len(at) != 2 {
			t.Errorf("killed before call %d, %s: mounted or held at %v", n, killed, at)
		}
	}
	r.unmount(one.Dir)
	r.unmount(two.Dir)
	r.ends()
	r.nothingAttached()
	if t.Failed() {
		t.Fatalf("killed before call %d, %s", n, killed)
	}
	r.stop()
	r.stop = func() {}
	r.driver.Stop()
	r.drivers.register(t, driverName, "")
	return tr.Calls
}
