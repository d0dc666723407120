package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

const sharing = `apiVersion: v1
kind: Pod
metadata: {name: sharing, namespace: e2e}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {fsGroup: 4711}
  initContainers:
  - {name: first, image: %[1]q, args: [check, -dir, /out, note], volumeMounts: [{name: disk, mountPath: /out}]}
  containers:
  - name: one
    image: %[1]q
    args: [sleep]
    volumeMounts:
    - {name: disk, mountPath: /in}
    - {name: memory, mountPath: /memory}
    - {name: files, mountPath: /image}
    - {name: host, mountPath: /host, readOnly: true}
  - name: two
    image: %[1]q
    args: [sleep]
    volumeMounts: [{name: memory, mountPath: /also}]
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 8Mi}}
  - {name: files, image: {reference: %[1]q}}
  - {name: host, hostPath: {path: %[2]q, type: DirectoryOrCreate}}
  - {name: unused, emptyDir: {medium: Memory}}
`

// TestVolumesAreSharedOutliveAKillAndLeaveNothing uses all kinds of volumes that need no other object, as the
// containers see them: containers share files, the limit of a volume in memory is its size, a kill of syncloop causes
// no new mounts, and after the pod there is no mount and no folder; files of the node remain.
func TestVolumesAreSharedOutliveAKillAndLeaveNothing(t *testing.T) {
	host := filepath.Join(t.TempDir(), "made", "for", "it")
	place(t, "sharing.yaml", fmt.Sprintf(sharing, image, host))
	p := await(t, "sharing", "Ready", ready)
	one, two := inside(t, p, "one"), inside(t, p, "two")
	if _, err := os.Stat(one + "/in/note.calls"); err != nil {
		t.Errorf("what the init container wrote on the disk: %v", err)
	}
	for _, dir := range []string{"/in", "/memory"} {
		info, err := os.Stat(one + dir)
		if err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSetgid == 0 || owner(info).Gid != 4711 {
			t.Errorf("%s is %v of group %d, %v; want 0777 with the group's bit, of 4711", dir, info.Mode(), owner(info).Gid, err)
		}
	}
	if err := os.WriteFile(one+"/memory/kept", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(two + "/also/kept"); err != nil {
		t.Errorf("what one container writes into memory is not there for the other: %v", err)
	}
	var memory unix.Statfs_t
	if err := unix.Statfs(one+"/memory", &memory); err != nil || memory.Type != unix.TMPFS_MAGIC || int64(memory.Blocks)*memory.Bsize != 8<<20 {
		t.Errorf("the volume in memory is of type %#x and has %d blocks of %d, %v", memory.Type, memory.Blocks, memory.Bsize, err)
	}
	if err := os.WriteFile(one+"/memory/large", make([]byte, 9<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a file that is larger than the volume: %v", err)
	}
	if _, err := os.Stat(one + "/image/hello"); err != nil {
		t.Errorf("the file of the image: %v", err)
	}
	for _, dir := range []string{"/image", "/host"} {
		if err := os.WriteFile(one+dir+"/mine", nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s can be written to: %v, want %v", dir, err, unix.EROFS)
		}
	}
	before := mounts(t, p)
	if len(before) != 1 || before["volumes/kubernetes.io~empty-dir/memory"].Kind != "tmpfs" {
		t.Errorf("mounted is %v, want the one volume in memory that a container mounts", before)
	}

	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	awaitThat(t, "syncloop has looked at the volumes again", func() bool {
		out, err := node.Command(t.Context(), "describe", "pod", "e2e/sharing")
		return err == nil && strings.Contains(out, "EmptyDir in Memory up to 8Mi") && strings.Count(out, "in place") == 4
	})
	if after := mounts(t, p); !maps.Equal(before, after) {
		t.Errorf("mounted was %v, and is %v after a kill of syncloop", before, after)
	}
	if again := await(t, "sharing", "Ready", ready); fmt.Sprint(containerIDs(again)) != fmt.Sprint(containerIDs(p)) {
		t.Error("a container was restarted")
	}
	if _, err := os.Stat(two + "/also/kept"); err != nil {
		t.Errorf("what was in memory: %v", err)
	}

	takeAway(t, "sharing.yaml")
	awaitGone(t, "sharing")
	awaitNothingLeft(t, p)
	if _, err := os.Stat(host); err != nil {
		t.Errorf("the folder of the node: %v", err)
	}
}

// TestAPathOfTheNodeIsWhatItsTypeSays checks that a pod with a path of the wrong type waits with a message, without
// effect on others, and starts when the path is corrected.
func TestAPathOfTheNodeIsWhatItsTypeSays(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(path("folder"), 0o700), os.WriteFile(path("file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", path("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close() //nolint:errcheck // nobody talks to it
	// not a disk of the machine
	if err := unix.Mknod(path("block"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err != nil {
		t.Fatal(err)
	}
	right := map[string]string{
		"Directory": path("folder"), "File": path("file"), "Socket": path("socket"), "CharDevice": "/dev/null", "BlockDevice": path("block"),
		"DirectoryOrCreate": path("new-folder"), "FileOrCreate": path("new-file"), "": path("folder"),
	}
	wrong := map[string]struct{ path, why string }{
		"Directory":   {path("none"), "hostPath type check failed: stat " + path("none") + ": no such file or directory"},
		"File":        {path("folder"), "hostPath type check failed: " + path("folder") + " is not a file"},
		"Socket":      {path("file"), "hostPath type check failed: " + path("file") + " is not a socket file"},
		"CharDevice":  {path("file"), "is not a character device"},
		"BlockDevice": {"/dev/null", "hostPath type check failed: /dev/null is not a block device"},
	}
	for kind, w := range wrong {
		place(t, "wrong-"+kind+".yaml", withHostPaths("wrong-"+strings.ToLower(kind), map[string]string{kind: w.path}))
	}
	place(t, "right.yaml", withHostPaths("right", right))
	p := await(t, "right", "Ready beside pods that wait", ready)
	for kind := range right {
		if _, err := os.Stat(filepath.Join(inside(t, p, "main"), hostPathOf(kind))); err != nil {
			t.Errorf("%q: %v", kind, err)
		}
	}
	if info, err := os.Stat(path("new-file")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("FileOrCreate made %v, %v", info, err)
	}
	for kind, w := range wrong {
		awaitFailedMount(t, "wrong-"+strings.ToLower(kind), fmt.Sprintf("MountVolume.SetUp failed for volume %q : ", hostPathOf(kind)), w.why)
	}
	if err := os.Mkdir(path("none"), 0o700); err != nil {
		t.Fatal(err)
	}
	await(t, "wrong-directory", "Ready once the folder is there", ready)
}

// hostPathOf returns the name of the volume of a type, and of its mount point.
func hostPathOf(kind string) string { return "volume" + strings.ToLower(kind) }

// withHostPaths returns a pod with a hostPath volume of each type.
func withHostPaths(name string, paths map[string]string) string {
	var mounts, volumes strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(paths)) {
		fmt.Fprintf(&mounts, "{name: %[1]s, mountPath: /%[1]s}, ", hostPathOf(kind))
		fmt.Fprintf(&volumes, "  - {name: %s, hostPath: {path: %q, type: %q}}\n", hostPathOf(kind), paths[kind], kind)
	}
	return strings.Replace(manifest(name, 1, "sleep"), `args: ["sleep"]`, `args: ["sleep"], volumeMounts: [`+mounts.String()+`]`, 1) + "  volumes:\n" + volumes.String()
}

// TestAKindOfVolumeThatIsNotThereIsNamed: a pod with an unsupported volume is Pending with a message and runs when its
// manifest is changed. One with a volume of a CSI driver that nothing is known of waits with the cause.
func TestAKindOfVolumeThatIsNotThereIsNamed(t *testing.T) {
	const mount = `args: ["sleep"], volumeMounts: [{name: data, mountPath: /data}]`
	far := strings.Replace(manifest("far", 1, "sleep"), `args: ["sleep"]`, mount, 1) + "  volumes: [{name: data, %s}]\n"
	place(t, "far.yaml", fmt.Sprintf(far, "fc: {targetWWNs: [50060e801049cfd1], lun: 0}"))
	p := await(t, "far", "Pending with a message", func(p *v1.Pod) bool { return p != nil && p.Status.Message != "" })
	const why = `volume "data" of kind fc: it is not supported yet by this version of Quartet`
	if p.Status.Phase != v1.PodPending || p.Status.Reason != "UnsupportedPodSpec" || !strings.Contains(p.Status.Message, why) {
		t.Errorf("its status is\n%s\nwant p.Status.Phase %v, p.Status.Reason %q and p.Status.Message with %q",
			describe(p), v1.PodPending, "UnsupportedPodSpec", why)
	}
	if out := quartet(t, "describe", "pod", "e2e/far"); !strings.Contains(out, why) {
		t.Errorf("described as\n%s\nwant text with %q", out, why)
	}
	place(t, "far.yaml", fmt.Sprintf(far, "csi: {driver: mine}"))
	awaitFailedMount(t, "far", `volume mode "Ephemeral" not supported by driver mine (no CSIDriver object)`)
	place(t, "far.yaml", fmt.Sprintf(far, "emptyDir: {}"))
	await(t, "far", "Ready with another volume", ready)
}

// inside returns the path by which this test sees the files of a running container.
func inside(t *testing.T, p *v1.Pod, container string) string {
	t.Helper()
	root, err := node.Inside(p, container)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// owner returns the owner of a file.
func owner(info os.FileInfo) *syscall.Stat_t {
	if info == nil {
		return &syscall.Stat_t{}
	}
	return info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // it is Linux
}

func mounts(t *testing.T, p *v1.Pod) map[string]livenode.Mount {
	t.Helper()
	all, err := node.Mounts(p)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// awaitNothingLeft waits until nothing of a pod's volumes is mounted or on the disk.
func awaitNothingLeft(t *testing.T, p *v1.Pod) {
	t.Helper()
	awaitThat(t, "no mount and no folder is left of "+p.Name, func() bool {
		left, err := node.Mounts(p)
		_, statErr := os.Lstat(node.PodDir(p))
		return err == nil && len(left) == 0 && errors.Is(statErr, os.ErrNotExist)
	})
}

// awaitFailedMount waits until the status and an event of a pod name a missing volume with the reason.
func awaitFailedMount(t *testing.T, name string, parts ...string) {
	t.Helper()
	all := func(text string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
	}
	await(t, name, fmt.Sprintf("Pending with FailedMount and %q", parts), func(p *v1.Pod) bool {
		return p != nil && p.Status.Phase == v1.PodPending && p.Status.Reason == "FailedMount" && all(p.Status.Message)
	})
	awaitThat(t, "an event FailedMount of "+name, func() bool {
		return slices.ContainsFunc(events(t, name, "--types", "Warning"), func(e seen) bool { return e.Reason == "FailedMount" && all(e.Message) })
	})
}
