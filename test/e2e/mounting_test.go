package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const startsAgain = `apiVersion: v1
kind: Pod
metadata: {name: starts-again, namespace: e2e}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %[1]q
    args: [sleep]
    volumeMounts:
    - {name: disk, mountPath: /all}
    - {name: disk, mountPath: /part, subPath: of/main}
    - {name: host, mountPath: /folder, subPath: current}
    - {name: host, mountPath: /etc/settings, subPath: settings, readOnly: true}
    - {name: host, mountPath: /read, readOnly: true, recursiveReadOnly: IfPossible}
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: host, hostPath: {path: %[2]q}}
`

// TestAContainerThatStartsAgainHasThePartsThatItHad checks a restarted container, also after a kill of syncloop: it has
// the same mounts, with a link within the volume followed. A read-only mount is recursively read-only where the runtime
// supports it. Nothing is left after the pod.
func TestAContainerThatStartsAgainHasThePartsThatItHad(t *testing.T) {
	host := t.TempDir()
	below := filepath.Join(host, "below")
	t.Cleanup(func() { _ = unix.Unmount(below, unix.MNT_DETACH) })
	if err := errors.Join(
		os.Mkdir(filepath.Join(host, "v1"), 0o755), os.Symlink("v1", filepath.Join(host, "current")), os.WriteFile(filepath.Join(host, "settings"), []byte("on"), 0o600),
		os.Mkdir(below, 0o755), unix.Mount("tmpfs", below, "tmpfs", 0, ""),
	); err != nil {
		t.Fatal(err)
	}
	place(t, "starts-again.yaml", fmt.Sprintf(startsAgain, image, host))
	p := await(t, "starts-again", "Ready", ready)
	root := inside(t, p, "main")
	for _, path := range []string{"/part/kept", "/folder/kept"} {
		if err := os.WriteFile(root+path, []byte(path), 0o600); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(root + "/part"); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("the folder that was made: %v, %v; want the mode of its volume", info, err)
	}
	before := mounts(t, p)
	want := []string{"volume-subpaths/disk/main/1", "volume-subpaths/host/main/2", "volume-subpaths/host/main/3"}
	if got := slices.Sorted(maps.Keys(before)); !slices.Equal(got, want) {
		t.Errorf("mounted are %v, want %v", got, want)
	}
	if m := p.Status.ContainerStatuses[0].VolumeMounts[4]; ptr.Deref(m.RecursiveReadOnly,
		"") != v1.RecursiveReadOnlyEnabled {
		t.Errorf("shown is %v, want what the runtime can do", m)
	}

	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	process, err := strconv.Atoi(strings.Split(root, "/")[2])
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(process, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p = await(t, "starts-again", "Ready again", func(p *v1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	root = inside(t, p, "main")
	for path, want := range map[string]string{
		root + "/all/of/main/kept": "/part/kept", filepath.Join(host, "v1/kept"): "/folder/kept",
		root + "/part/kept": "/part/kept", root + "/folder/kept": "/folder/kept", root + "/etc/settings": "on",
	} {
		if got, err := os.ReadFile(path); string(got) != want {
			t.Errorf("%s has %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"/etc/settings", "/read/new", "/read/below/new"} {
		if err := os.WriteFile(root+path, nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s can be written to: %v, want %v", path, err, unix.EROFS)
		}
	}
	if after := mounts(t, p); !maps.Equal(before, after) {
		t.Errorf("mounted was %v, is %v", before, after)
	}

	takeAway(t, "starts-again.yaml")
	awaitGone(t, "starts-again")
	awaitNothingLeft(t, p)
	if got, err := os.ReadFile(filepath.Join(host, "v1/kept")); string(got) != "/folder/kept" {
		t.Errorf("what is the node's: %q, %v, want %q", got, err, "/folder/kept")
	}
}

// TestALinkOutOfAVolumeIsReportedWithoutItsTarget checks that the message omits the target of the link, and that the
// container starts once the link is removed.
func TestALinkOutOfAVolumeIsReportedWithoutItsTarget(t *testing.T) {
	host, outside := t.TempDir(), t.TempDir()
	link := filepath.Join(host, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	const mount = `args: ["sleep"], volumeMounts: [{name: host, mountPath: /out, subPath: link/new}]`
	place(t, "out.yaml", strings.Replace(manifest("out", 1, "sleep"), `args: ["sleep"]`, mount, 1)+fmt.Sprintf("  volumes: [{name: host, hostPath: {path: %q}}]\n", host))
	const why = `failed to create subPath directory for volumeMount "host" of container "main"`
	p := await(t, "out", "waiting and saying why", saysInItsStatus("CreateContainerConfigError", why))
	awaitThat(t, "an event", func() bool {
		return slices.ContainsFunc(events(t, "out", "--types", "Warning"), func(e seen) bool { return e.Reason == "Failed" && e.Message == "Error: "+why })
	})
	if got := mounts(t, p); len(got) > 0 {
		t.Errorf("mounted are %v, want none", got)
	}
	if got, err := os.ReadDir(outside); err != nil || len(got) > 0 {
		t.Errorf("made outside are %v, %v, want none", got, err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	await(t, "out", "Ready with a folder in the place of the link", ready)
	if info, err := os.Lstat(filepath.Join(link, "new")); err != nil || !info.IsDir() {
		t.Errorf("made is %v, %v", info, err)
	}
	takeAway(t, "out.yaml")
	awaitGone(t, "out")
	awaitNothingLeft(t, p)
}

// saysInItsStatus matches a pod whose first container waits for a reason, with a text in its message.
func saysInItsStatus(reason, text string) func(*v1.Pod) bool {
	return func(p *v1.Pod) bool {
		if p == nil || len(p.Status.ContainerStatuses) == 0 {
			return false
		}
		waiting := p.Status.ContainerStatuses[0].State.Waiting
		return waiting != nil && waiting.Reason == reason && strings.Contains(waiting.Message, text)
	}
}

// TestAPrivateMountSaysWhatToDo checks the message, and then the propagation: after the fix the container sees the
// mounts of the node, also below a part of a volume, and they remain after the pod.
func TestAPrivateMountSaysWhatToDo(t *testing.T) {
	for name, more := range map[string]string{"propagates": "", "propagates-part": ", subPath: part"} {
		host := t.TempDir()
		t.Cleanup(func() { _ = unix.Unmount(host, unix.MNT_DETACH) })
		if err := errors.Join(unix.Mount("tmpfs", host, "tmpfs", 0, ""), unix.Mount("", host, "", unix.MS_PRIVATE, "")); err != nil {
			t.Fatal(err)
		}
		mount := `args: ["sleep"], volumeMounts: [{name: host, mountPath: /host, mountPropagation: HostToContainer` + more + `}]`
		manifest := strings.Replace(manifest(name, 1, "sleep"), `args: ["sleep"]`, mount, 1) + fmt.Sprintf("  volumes: [{name: host, hostPath: {path: %q}}]\n", host)
		below := filepath.Join(host, "part", "below")
		if more == "" {
			below = filepath.Join(host, "below")
			place(t, name+".yaml", manifest)
			await(t, name, "waiting and saying what to do", saysInItsStatus("CreateContainerError", "mount --make-rshared "+host))
		}
		if err := unix.Mount("", host, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
			t.Fatal(err)
		}
		place(t, name+".yaml", manifest)
		p := await(t, name, "Ready", ready)
		if err := errors.Join(os.MkdirAll(below, 0o755), unix.Mount("tmpfs", below, "tmpfs", 0, ""), os.WriteFile(below+"/new", nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(inside(t, p, "main") + "/host/below/new"); err != nil {
			t.Errorf("%s: what the node has mounted: %v", name, err)
		}
		takeAway(t, name+".yaml")
		awaitGone(t, name)
		awaitNothingLeft(t, p)
		if _, err := os.Stat(below + "/new"); err != nil {
			t.Errorf("%s: what the node has mounted, after the pod: %v", name, err)
		}
	}
}
