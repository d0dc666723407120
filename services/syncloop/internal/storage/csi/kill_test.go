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
)

// killRoot and killSocket are the root directory and the driver's socket of the process that is killed.
const (
	killRoot   = "CSI_TEST_ROOT"
	killSocket = "CSI_TEST_SOCKET"
)

// life mounts a volume for two pods, unmounts it, and waits until it is unstaged.
func (r *rig) life() {
	r.t.Helper()
	one, two := r.pair()
	r.mount(one)
	r.mount(two)
	r.unmount(one.Dir)
	r.unmount(two.Dir)
	eventually.That(r.t, "it is unstaged", func() bool { return len(r.left()) == 0 })
}

// pair returns the requests of two pods for one volume.
func (r *rig) pair() (one, two persistentvolumes.Request) {
	pv := newPV("pv-1", "vol-1")
	return r.request(newPod("u1"), pv), r.request(newPod("u2"), pv)
}

// TestAKillAnywhereLeavesNothingBehind kills a process before each system call that changes something on disk. A record
// is written before and after each call of the driver, so that this is between any two calls too.
func TestAKillAnywhereLeavesNothingBehind(t *testing.T) {
	if root := os.Getenv(killRoot); root != "" {
		r := &rig{
			t: t, root: root, timeout: 30 * time.Second, drivers: &drivers{conns: map[string]*grpc.ClientConn{}},
			cluster: &cluster{drivers: map[string]*storagev1.CSIDriver{driverName: newObject()}},
		}
		r.drivers.register(t, driverName, os.Getenv(killSocket))
		r.start()
		r.life()
		r.stop()
		r.drivers.register(t, driverName, "")
		return
	}
	calls := killedAt(t, 0, false)
	if len(calls) < 20 {
		t.Fatalf("only %d calls change something:\n%s", len(calls), strings.Join(calls, "\n"))
	}
	for n := 1; n <= len(calls); n++ {
		for _, comesBack := range []bool{true, false} {
			killedAt(t, n, comesBack)
		}
	}
}

// killedAt kills a process before its nth call, or not at all if n is 0, and lets the next process take over.
func killedAt(t *testing.T, n int, comesBack bool) (calls []string) {
	t.Helper()
	r := newRig(t, canStage)
	r.stop()
	cmd := exec.Command(os.Args[0], "-test.run=^TestAKillAnywhereLeavesNothingBehind$")
	cmd.Env = append(os.Environ(), killRoot+"="+r.root, killSocket+"="+r.driver.Socket())
	tr := &killpoint.Tracer{Root: r.root, Kill: n}
	status := tr.Run(t, cmd)
	if status.Signaled() != (n > 0) || n == 0 && status.ExitStatus() != 0 {
		t.Fatalf("the process ended with %#x after\n%s", status, strings.Join(tr.Calls, "\n"))
	}
	r.start()
	one, two := r.pair()
	if comesBack {
		r.mount(one)
		r.mount(two)
		if at := mountsBelow(t, filepath.Join(r.root, "pods")); len(at) != 2 {
			t.Errorf("killed before call %d, %s: mounted at %v", n, tr.Calls[n-1], at)
		}
	}
	r.unmount(one.Dir)
	r.unmount(two.Dir)
	r.ends()
	if t.Failed() {
		t.Fatalf("killed before call %d, %s", n, tr.Calls[max(n, 1)-1])
	}
	r.stop()
	r.stop = func() {}
	r.driver.Stop()
	r.drivers.register(t, driverName, "")
	return tr.Calls
}
