package disks

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// TestANodeStartsAndWorksOnAReadOnlyDisk has the whole state directory on a file system that becomes read-only, as an
// ext4 does by an error. Sockets, manifests and logs of containers are elsewhere, as they can be. Every process is
// killed and starts again; pods run on, end and are evicted; what does not work is said; and with the disk well again,
// nothing is lost. At last `quartet down` stops the node while the disk is read-only.
func TestANodeStartsAndWorksOnAReadOnlyDisk(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	containerd := harness.StartContainerd(t)
	dir := filepath.Join(containerd.StateDir, "node")
	for _, at := range []string{dir, filepath.Join(dir, "run"), filepath.Join(dir, "logs"), filepath.Join(dir, "manifests")} {
		mountMemory(t, at)
	}
	r := &rig{bin: harness.BinDir(t)}
	r.node = harness.StartNodeIn(t, containerd, dir, nil)
	goes, pressed, added, dies := r.of("goes"), r.of("pressed"), r.of("new"), r.of("dies")
	for _, name := range []string{"kept", goes, pressed} {
		r.node.WriteManifest(t, name+".yaml", manifest(name, "", "serve"))
	}
	r.node.WriteManifest(t, "dies.yaml", manifest(dies, "", "crash"))
	eventually.In(ctx, t, "the pods run", func() bool {
		d := r.node.Pod(ctx, dies)
		return harness.Ready(r.node.Pod(ctx, "kept")) && harness.Ready(r.node.Pod(ctx, goes)) &&
			harness.Ready(r.node.Pod(ctx, pressed)) && d != nil && len(d.Status.ContainerStatuses) > 0
	})
	r.kept = container(r.node.Pod(ctx, "kept"))

	r.remount(ctx, t, unix.MS_RDONLY)
	said := r.logged(t)
	r.node.Start(t)
	for _, service := range layout.Services() {
		r.killOne(ctx, t, service)
	}
	before := r.node.Pod(ctx, dies).Status.ContainerStatuses[0].RestartCount
	if err := os.Remove(filepath.Join(r.node.Manifests, goes+".yaml")); err != nil {
		t.Fatal(err)
	}
	r.node.WriteManifest(t, "new.yaml", manifest(added, "", "serve"))
	eventually.In(ctx, t, "the pod without a manifest has ended", func() bool { return r.away(ctx, goes) })
	r.evict(ctx, t, pressed, said)
	r.killOne(ctx, t, layout.SyncLoop)
	r.isStill(ctx, t, pressed, evicted)
	eventually.In(ctx, t, "the container that has ended is started again", func() bool {
		p := r.node.Pod(ctx, dies)
		return p != nil && p.Status.ContainerStatuses[0].RestartCount > before
	})
	for _, args := range [][]string{{"get", "pods"}, {"describe", "pod", "kept-node"}, {"get", "node"}} {
		r.must(t, "", args...)
	}
	if out, _ := r.command(ctx, "", "doctor"); !strings.Contains(out, dir) || !strings.Contains(out, "mount it writable") {
		t.Errorf("quartet doctor does not say that the disk is read-only, and what to do:\n%s", out)
	}
	for _, want := range []string{"mount it writable", added} {
		if !r.says(t, said, file{name: want}) {
			t.Errorf("the log does not say %q: %s", want, r.last(t, said))
		}
	}

	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	eventually.In(ctx, t, "the eviction is on disk", func() bool {
		book, err := os.ReadFile(filepath.Join(dir, "evictions.json"))
		return err == nil && strings.Contains(string(book), "Evicted")
	})
	later := r.of("later") // the pod that waits is tried again only within 90 s
	r.node.WriteManifest(t, "later.yaml", manifest(later, "", "serve"))
	eventually.In(ctx, t, "a new pod is ready", func() bool { return harness.Ready(r.node.Pod(ctx, later)) })

	r.remount(ctx, t, unix.MS_RDONLY)
	r.node.Start(t)
	eventually.In(ctx, t, "the pods are known", func() bool { return harness.Ready(r.node.Pod(ctx, "kept")) })
	if got := container(r.node.Pod(ctx, "kept")); got != r.kept {
		t.Errorf("the first pod ran in %s, and runs in %s", r.kept, got)
	}
	r.isStill(ctx, t, pressed, evicted)
	r.must(t, "", "down", "--keep-pods")
	if r.node.Healthy(ctx) {
		t.Error("the node serves after quartet down")
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
}

// mountMemory mounts a file system of its own at a path.
func mountMemory(t *testing.T, at string) {
	t.Helper()
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// remount kills the node and mounts its disk with flags. The kernel makes a failing ext4 read-only also while files are
// open for writing; a test cannot.
func (r *rig) remount(ctx context.Context, t *testing.T, flags uintptr) {
	t.Helper()
	r.end(ctx, t, r.processes(t)...)
	eventually.In(ctx, t, "no file is open for writing", func() bool {
		return unix.Mount("", r.node.Layout.StateDir(), "", unix.MS_REMOUNT|flags, "") == nil
	})
}

// killOne kills a service and waits until another process of it serves.
func (r *rig) killOne(ctx context.Context, t *testing.T, service layout.Service) {
	t.Helper()
	pid := 0
	eventually.In(ctx, t, string(service)+" runs", func() bool { // /healthz does not wait for configmux
		pid = r.holder(t, service)
		return pid != 0
	})
	r.end(ctx, t, pid)
	eventually.In(ctx, t, string(service)+" serves again", func() bool {
		owner, err := rpc.ServerOf(r.node.Layout.Address(service))
		return err == nil && owner.PID != pid && r.node.Healthy(ctx)
	})
}

// holder returns the process that holds a lock of the node; 0 for none. PID files are out of date on a read-only disk.
func (r *rig) holder(t *testing.T, name layout.Service) int {
	t.Helper()
	held, err := statedir.Lock(r.node.Layout.StateDir(), string(name))
	var other *statedir.HeldError
	switch {
	case errors.As(err, &other):
		return other.Holder.PID
	case err != nil:
		t.Fatal(err)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	return 0
}

// processes returns the processes of the node, the supervisor first.
func (r *rig) processes(t *testing.T) (pids []int) {
	t.Helper()
	for _, name := range append([]layout.Service{"quartet"}, layout.Services()...) {
		if pid := r.holder(t, name); pid != 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// end kills processes.
func (r *rig) end(ctx context.Context, t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
	eventually.In(ctx, t, "the processes have ended", func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool { return unix.Kill(pid, 0) == nil })
	})
}
