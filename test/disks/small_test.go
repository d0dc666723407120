package disks

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/livenode"
	"github.com/quartet-node/quartet/test/require"
)

const (
	// pressure has the node evict pods when its disk is full.
	pressure = "  nodefs.available: 1Mi\n"
	// critical is the priority of a pod that is not evicted then.
	critical = "  priority: 2000001000\n"
)

// TestANodeOnASmallDisk has the state directory on a small ext4, which gets full, and later read-only by an error of
// the file system. Pods end, are evicted and exceed their deadlines, critical pods run on in the same containers
// through kills of all processes, and the node says what is wrong. When the disk is well, nothing is lost that was
// accepted.
func TestANodeOnASmallDisk(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	containerd := harness.StartContainerd(t)
	// The path is too long for sockets, which are therefore in /run/quartet, as those of the default directory.
	dir := filepath.Join(containerd.StateDir, "a-node-on-a-file-system-of-its-own")
	disk := newSmallDisk(t, dir)
	r := &rig{bin: harness.BinDir(t)}
	r.node = harness.StartNodeIn(t, containerd, dir, nil)
	r.node.Stop(t)
	r.configure(t, livenode.NoEviction, strings.Replace(livenode.NoEviction, "  nodefs.available: 0%\n", pressure, 1)+
		"evictionPressureTransitionPeriod: 1s\n")
	r.node.Start(t)
	r.node.WriteManifest(t, "kept.yaml", manifest("kept", critical, "serve"))
	r.node.WriteManifest(t, "goes.yaml", manifest("goes", critical, "serve"))
	r.node.WriteManifest(t, "late.yaml", manifest("late", critical+"  activeDeadlineSeconds: 15\n", "serve"))
	r.node.WriteManifest(t, "pressed.yaml", manifest("pressed", "", "serve"))
	eventually.In(ctx, t, "the pods run", func() bool {
		return harness.Ready(r.node.Pod(ctx, "kept")) && harness.Ready(r.node.Pod(ctx, "goes")) &&
			harness.Ready(r.node.Pod(ctx, "pressed")) && r.node.Pod(ctx, "late") != nil
	})
	r.kept = container(r.node.Pod(ctx, "kept"))

	r.fillsUp(ctx, t, disk)
	r.breaks(ctx, t, disk)
}

// fillsUp has the disk full until the node has ended pods and was killed.
func (r *rig) fillsUp(ctx context.Context, t *testing.T, disk *smallDisk) {
	t.Helper()
	disk.fill()
	r.refuses(ctx, t, "no space left on device")
	if err := os.Remove(filepath.Join(r.node.Manifests, "goes.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually.In(ctx, t, "pods have ended, which is recorded, and the Node says why", func() bool {
		p, q := r.node.Pod(ctx, "pressed"), r.node.Pod(ctx, "late")
		book, err := os.ReadFile(filepath.Join(disk.dir, "evictions.json"))
		return r.away(ctx, "goes") && evicted(p) && overdue(q) && r.hasCondition(ctx, "DiskPressure", "True") &&
			err == nil && strings.Contains(string(book), string(p.UID)) && strings.Contains(string(book), string(q.UID))
	})
	r.end(ctx, t, r.processes(t)...)
	r.node.Start(t)
	r.keptRunning(ctx, t)
	r.isStill(ctx, t, "pressed", evicted)
	r.isStill(ctx, t, "late", overdue)

	disk.empty()
	eventually.In(ctx, t, "the pressure is over", func() bool { return r.hasCondition(ctx, "DiskPressure", "False") })
	r.must(t, secret("promised", "s"), "apply", "-f", "-")
	r.must(t, manifest("applied", "", "serve"), "apply", "-f", "-")
	r.node.WriteManifest(t, "second.yaml", manifest("second", "", "serve"))
	eventually.In(ctx, t, "new pods are ready", func() bool {
		return harness.Ready(r.node.Pod(ctx, "applied")) && harness.Ready(r.node.Pod(ctx, "second"))
	})
}

// breaks has an error of the file system, and a repair as docs/reference/files.md describes it.
func (r *rig) breaks(ctx context.Context, t *testing.T, disk *smallDisk) {
	t.Helper()
	said := r.logged(t)
	disk.sync() // nobody else syncs the manifests to disk, and the repair removes what is in the journal only
	if !disk.fail() {
		t.Log("this kernel lets nobody read an ext4 after an error")
		return
	}
	r.refuses(ctx, t, "read-only file system")
	r.evict(ctx, t, "second", said)
	r.killOne(ctx, t, layout.SyncLoop)
	out, _ := r.command(ctx, "", "doctor")
	remedy := strings.Contains(out, "e2fsck") || strings.Contains(out, "remount,rw") // before Linux 6.12
	if !strings.Contains(out, disk.dir+" is on a read-only file system") || !remedy {
		t.Errorf("quartet doctor does not say what to do about the disk:\n%s", out)
	}
	r.end(ctx, t, r.processes(t)...)
	r.node.Start(t)
	r.keptRunning(ctx, t)
	r.isStill(ctx, t, "second", evicted)
	if !r.hasCondition(ctx, "Ready", "True") {
		t.Errorf("the Node is not ready: %s", r.last(t, said))
	}

	r.must(t, "", "down")
	r.node.Containerd.RemovePods(t)
	disk.repair(ctx)
	r.node.Start(t)
	eventually.In(ctx, t, "what was accepted runs", func() bool {
		return harness.Ready(r.node.Pod(ctx, "kept")) && harness.Ready(r.node.Pod(ctx, "applied"))
	})
	r.isStill(ctx, t, "pressed", evicted)
	r.isStill(ctx, t, "second", evicted)
	if secrets, err := r.command(ctx, "", "get", "secrets"); err != nil || !strings.Contains(secrets, "promised") {
		t.Errorf("the secret is lost: %v: %s", err, secrets)
	}
}

// configure replaces a part of the node's configuration.
func (r *rig) configure(t *testing.T, old, with string) {
	t.Helper()
	path := r.node.Layout.ConfigFile()
	config, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(config), old, with, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// refuses checks that the node refuses what it cannot keep, and says why.
func (r *rig) refuses(ctx context.Context, t *testing.T, why string) {
	t.Helper()
	const size = 256 << 10 // what is smaller may find room
	refused := secret("refused", strings.Repeat("s", size))
	if out, err := r.command(ctx, refused, "apply", "-f", "-"); err == nil || !strings.Contains(out, why) {
		t.Errorf("apply: %v, and does not say %q: %s", err, why, out)
	}
	if !r.node.Healthy(ctx) {
		t.Error("/healthz does not say ok")
	}
}

// keptRunning checks that the first pod is ready, in the same container.
func (r *rig) keptRunning(ctx context.Context, t *testing.T) {
	t.Helper()
	eventually.In(ctx, t, "the first pod is ready", func() bool { return harness.Ready(r.node.Pod(ctx, "kept")) })
	if got := container(r.node.Pod(ctx, "kept")); got != r.kept {
		t.Errorf("the first pod ran in %s, and runs in %s", r.kept, got)
	}
}

// isStill checks that a pod that has ended for good is the same after a restart.
func (r *rig) isStill(ctx context.Context, t *testing.T, name string, ended func(*v1.Pod) bool) {
	t.Helper()
	eventually.In(ctx, t, name+" is known", func() bool { return r.node.Pod(ctx, name) != nil })
	if p := r.node.Pod(ctx, name); !ended(p) {
		t.Errorf("after a restart %s is %v", name, p)
	}
}

// hasCondition reports whether the Node has a condition with a status.
func (r *rig) hasCondition(ctx context.Context, kind, status string) bool {
	out, err := r.command(ctx, "", "get", "node", "-o", `jsonpath={.status.conditions[?(@.type=="`+kind+`")].status}`)
	return err == nil && strings.TrimSpace(out) == status
}

// smallDisk is an ext4 in a file.
type smallDisk struct {
	t          testing.TB
	image, dir string
}

// newSmallDisk mounts an ext4 at a directory that does not exist, on a machine that can.
func newSmallDisk(t testing.TB, dir string) *smallDisk {
	t.Helper()
	require.Root(t, "mounting a disk")
	_, err := os.Stat("/dev/loop-control")
	require.NoError(t, err)
	for _, program := range []string{"losetup", "mkfs.ext4", "e2fsck"} {
		_, err := exec.LookPath(program)
		require.NoError(t, err)
	}
	d := &smallDisk{t: t, image: dir + ".img", dir: dir}
	file, err := os.Create(d.image)
	if err := errors.Join(err, file.Truncate(32<<20), file.Close(), os.MkdirAll(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	d.run("mkfs.ext4", "-q", "-m", "0", "-e", "remount-ro", d.image)
	d.run("mount", "-o", "loop", d.image, dir)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	return d
}

func (d *smallDisk) run(program string, args ...string) string {
	d.t.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	var failed *exec.ExitError
	repaired := program == "e2fsck" && errors.As(err, &failed) && failed.ExitCode() == 1
	if err != nil && !repaired {
		d.t.Fatalf("%s: %v: %s", program, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (d *smallDisk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill fills the disk with a file, which grows.
func (d *smallDisk) fill() {
	d.t.Helper()
	file, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	_, err = file.Write(make([]byte, 32<<20))
	if err := errors.Join(err, file.Close()); !errors.Is(err, unix.ENOSPC) {
		d.t.Fatalf("fill the disk: %v, want %v", err, unix.ENOSPC)
	}
}

func (d *smallDisk) empty() {
	d.t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		d.t.Fatal(err)
	}
}

func (d *smallDisk) sync() {
	d.t.Helper()
	d.run("sync", "-f", d.dir)
}

// fail has the kernel find an error in the file system, and returns whether that is read-only then. Linux 6.12 to 6.14
// answers all calls with an error.
func (d *smallDisk) fail() bool {
	d.t.Helper()
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(d.device()), "trigger_fs_error")
	_ = os.WriteFile(trigger, []byte("1"), 0o200) // it may return the error
	err := os.Mkdir(filepath.Join(d.dir, "new"), 0o700)
	if !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EIO) {
		d.t.Fatalf("the disk has no error: %v, want %v", err, unix.EROFS)
	}
	return errors.Is(err, unix.EROFS)
}

// device returns the loop device of the disk, empty if it has none.
func (d *smallDisk) device() string {
	return d.run("losetup", "--noheadings", "--output", "NAME", "--associated", d.image)
}

// repair repairs the file system and mounts it again.
func (d *smallDisk) repair(ctx context.Context) {
	d.t.Helper()
	if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
		d.t.Fatal(err)
	}
	eventually.In(ctx, d.t, "nothing uses the disk", func() bool { return d.device() == "" })
	d.run("e2fsck", "-f", "-y", d.image)
	d.run("mount", "-o", "loop", d.image, d.dir)
}
