package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// withVolume adds a volume to the container, mounted at a folder of its name.
func withVolume(name string, source v1.VolumeSource) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		c := &p.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
}

// onDisk and inMemory return sources of volumes that are empty at first.
func onDisk() v1.VolumeSource { return v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}} }

func inMemory() v1.VolumeSource {
	return v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}
}

// fromObjects returns the source of a volume with the files of objectsFor.
func fromObjects() v1.VolumeSource {
	name := v1.LocalObjectReference{Name: "volumes-kill"}
	return v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: name}},
		{Secret: &v1.SecretProjection{LocalObjectReference: name}},
	}}}
}

// objectsFor has a config map and a secret, with the same text under one key each.
const objectsFor = `apiVersion: v1
kind: ConfigMap
metadata: {name: volumes-kill, namespace: faults}
data: {plain: %[1]q}
---
apiVersion: v1
kind: Secret
metadata: {name: volumes-kill, namespace: faults}
stringData: {hidden: %[1]q}
`

// TestVolumesAreOnceAndThenGoneWheneverSyncloopIsKilled kills syncloop repeatedly while volumes are set up, while their
// sources change, and while they are removed.
func TestVolumesAreOnceAndThenGoneWheneverSyncloopIsKilled(t *testing.T) {
	const rounds, pods, kills, within = 2, 4, 2, 300 * time.Millisecond
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("the moments are those of seed %d", seed)
	version := ""
	change := func(to string) {
		version = to
		if err := node.Place("volumes-kill-objects.yaml", fmt.Sprintf(objectsFor, to)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := node.TakeAway("volumes-kill-objects.yaml"); err != nil {
			t.Error(err)
		}
	})
	killSome := func(round int) {
		for i := range kills {
			change(fmt.Sprintf("%d-%d", round, i))
			<-time.After(time.Duration(random.Int64N(int64(within))))
			killSyncloop(t, syscall.SIGKILL)
		}
	}
	for round := range rounds {
		var all []*v1.Pod
		name := func(i int) string { return fmt.Sprintf("volumes-kill-%d-%d", round, i) }
		for i := range pods {
			place(t, name(i), withVolume("disk", onDisk()), withVolume("memory", inMemory()), withVolume("files", fromObjects()))
		}
		killSome(round)
		for i := range pods {
			p := awaitOne(t, name(i))
			all = append(all, p)
			if mounts, err := node.Mounts(p); err != nil || len(mounts) != 2 {
				t.Errorf("mounted for %s is %v, %v; want the two volumes in memory, each once", name(i), mounts, err)
			}
			awaitThat(t, "the volume of "+name(i)+" has the last version, and nothing of another", func() bool {
				return holds(p, map[string]string{"plain": version, "hidden": version})
			})
		}
		for i := range pods {
			takeAway(t, name(i))
		}
		killSome(round)
		for i, p := range all {
			awaitGone(t, name(i))
			awaitThat(t, "no mount and no folder is left of "+name(i), func() bool { return nothingLeft(p) })
		}
	}
}

// holds reports whether the volume from objects of a pod has these files, and no version except the current one.
func holds(p *v1.Pod, files map[string]string) bool {
	dir := filepath.Join(node.PodDir(p), "volumes", "kubernetes.io~projected", "files")
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			return false
		}
	}
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == len(files)+2 // ..data, and its target
}

// killSyncloop sends a signal to syncloop and waits until it has been replaced.
func killSyncloop(t *testing.T, signal syscall.Signal) {
	t.Helper()
	var old int
	awaitThat(t, "syncloop runs", func() bool {
		id, err := node.PID("syncloop")
		old = id
		return err == nil && syscall.Kill(id, signal) == nil
	})
	awaitThat(t, "another syncloop runs", func() bool {
		id, err := node.PID("syncloop")
		return err == nil && id != old
	})
}

// nothingLeft reports whether nothing of a pod's volumes is mounted or on the disk.
func nothingLeft(p *v1.Pod) bool {
	mounts, err := node.Mounts(p)
	_, statErr := os.Lstat(node.PodDir(p))
	return err == nil && len(mounts) == 0 && errors.Is(statErr, os.ErrNotExist)
}

// TestAVolumeWithoutADiskDelaysItsPodAndNoOther puts a pod's volumes on a full disk, and on a read-only one: the pod
// waits with a message, another pod starts, and the pod starts when the disk is repaired. A foreign mount there is not
// a volume, and is never removed.
func TestAVolumeWithoutADiskDelaysItsPodAndNoOther(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		wrong, mended mount
		why           string
	}{
		"volume-disk-full":      {wrong: mount{options: "nr_inodes=1"}, mended: mount{options: "nr_inodes=100"}, why: "no space left on device"},
		"volume-disk-read-only": {wrong: mount{flags: unix.MS_RDONLY}, why: "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			uid := types.UID("uid-of-" + name)
			disk := filepath.Join(node.PodDir(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}), "volumes",
				"kubernetes.io~empty-dir")
			test.wrong.at(t, disk)
			place(t, name, withVolume("data", onDisk()), func(p *v1.Pod) { p.UID = uid })
			place(t, name+"-beside", withVolume("data", onDisk()))
			awaitOne(t, name+"-beside")
			parts := []string{`MountVolume.SetUp failed for volume "data" : `, test.why}
			await(t, name, "Pending with the cause", func(p *v1.Pod) bool {
				return p.Status.Phase == v1.PodPending && p.Status.Reason == "FailedMount" && hasAll(p.Status.Message, parts)
			})
			awaitEvent(t, name, v1.EventTypeWarning, "FailedMount", parts...)
			test.mended.again(t, disk)
			awaitOne(t, name)
			takeAway(t, name)
			awaitWorkerError(t, name, disk+" is mounted there; unmount it")
			if left, err := os.ReadDir(disk); err != nil || len(left) > 0 {
				t.Errorf("of the volume is left %v, %v", left, err)
			}
			if err := unix.Unmount(disk, 0); err != nil {
				t.Fatal(err)
			}
			awaitGone(t, name)
		})
	}
}

// mount has the options of a small file system.
type mount struct {
	flags   uintptr
	options string
}

// at mounts it at a folder, which it creates, until the test ends or something else unmounts it.
func (m mount) at(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("quartet-faults", dir, "tmpfs", m.flags, m.options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
}

// again remounts it with other options.
func (m mount) again(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("quartet-faults", dir, "tmpfs", unix.MS_REMOUNT|m.flags, m.options); err != nil {
		t.Fatal(err)
	}
}

// TestAVolumeThatHangsDelaysItsPodAndNoOther has a path of the node hang in the kernel, like one of a server that does
// not answer: another pod starts, syncloop can be killed and is soon replaced, and the hanging call is reported. When
// the path fails at last, the failure is reported like any other, and the pod is removed.
func TestAVolumeThatHangsDelaysItsPodAndNoOther(t *testing.T) {
	path, answer := hangingPath(t)
	directory := v1.HostPathDirectory
	place(t, "volume-hangs", withVolume("far", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &directory}}))
	hangs := func() bool {
		out, err := node.Command(t.Context(), "describe", "pod", "-n", namespace, "volume-hangs")
		return err == nil && strings.Contains(out, "not in place yet, worked on for ")
	}
	awaitThat(t, "the volume is being worked on", hangs)
	place(t, "volume-beside", withVolume("memory", inMemory()))
	awaitOne(t, "volume-beside")
	begun := time.Now()
	killSyncloop(t, syscall.SIGTERM)
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("with a volume that hangs syncloop took %v to end and come again", took)
	}
	awaitThat(t, "the volume is being worked on again", hangs)
	answer()
	awaitEvent(t, "volume-hangs", v1.EventTypeWarning, "FailedMount", `MountVolume.SetUp failed for volume "far" : `, "transport endpoint is not connected")
}

// hangingPath returns a path at which every call hangs until answer is called, and fails afterwards: it is in a file
// system in user space (FUSE) without a server.
func hangingPath(t *testing.T) (path string, answer func()) {
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("there are no file systems in user space:", err)
	}
	dir := t.TempDir()
	if err := unix.Mount("quartet-faults", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())); err != nil {
		t.Fatal(err)
	}
	answer = sync.OnceFunc(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		answer()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "far"), answer
}
