package vmnode

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

// The pod one has an init container, and volumes on disk and in memory.
const (
	restartSpec = "volumes: [{name: disk, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}]\n" +
		"initContainers: [{name: first, image: \"" + livenode.Image + "\", args: [init],\n" +
		"  resources: {requests: {cpu: 1, memory: 64Mi}, limits: {cpu: 1, memory: 64Mi}}}]\n"
	restartMounts = "volumeMounts: [{name: disk, mountPath: /disk}, {name: memory, mountPath: /memory}]\n"
)

// volume returns the folder of an emptyDir of the pod one.
func (n *node) volume(name string) string {
	return filepath.Join(n.PodDir(n.find("one")), "volumes", "kubernetes.io~empty-dir", name)
}

// writeDurably writes a file that outlives a loss of power.
func writeDurably(path, content string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	dir, opened := os.Open(filepath.Dir(path))
	if opened == nil {
		opened = errors.Join(dir.Sync(), dir.Close())
	}
	return errors.Join(err, file.Sync(), file.Close(), opened)
}

// prepareRestart leaves files in volumes, a pod that must not be repeated, and one that has done its work.
func prepareRestart(n *node) {
	n.place("never", hosted+"restartPolicy: Never\n", "args: [sleep]\n")
	n.place("done", hosted+"restartPolicy: OnFailure\n", "args: [init]\n")
	n.ready("never")
	n.awaitPod("done", "Succeeded", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodSucceeded })
	for _, name := range []string{"disk", "memory"} {
		if err := writeDurably(filepath.Join(n.volume(name), "file"), "before"); err != nil {
			n.t.Fatal(err)
		}
	}
	if err := writeDurably("/var/uid", string(n.find("one").UID)); err != nil {
		n.t.Fatal(err)
	}
	// containerd writes the end of a container to a file and renames it, but does not wait until that is on the disk.
	// Without it, a container that has ended is one that the machine has killed: a kubelet, too, would run it again.
	unix.Sync()
}

// testRestart is what has become of the pods after the machine was switched off and on: what the kubelet makes of them.
func testRestart(n *node) {
	n.ready("one")
	n.ready("two")
	n.ready("around")
	wantAlignment(n)
	uid, err := os.ReadFile("/var/uid")
	if err != nil || string(n.find("one").UID) != string(uid) {
		n.t.Errorf("the pod has the UID %s, had %s, %v", n.find("one").UID, uid, err)
	}
	if content, err := os.ReadFile(filepath.Join(n.volume("disk"), "file")); err != nil || string(content) != "before" {
		n.t.Errorf("the volume on disk has %q, %v", content, err)
	}
	if _, err := os.Stat(filepath.Join(n.volume("memory"), "file")); !errors.Is(err, os.ErrNotExist) {
		n.t.Errorf("the volume in memory has its file: %v", err)
	}
	for _, name := range []string{"one", "two", "around"} {
		main := status(n.find(name))
		last := main.LastTerminationState.Terminated
		if main.RestartCount != 1 || last == nil || last.ExitCode != 255 || last.Reason != "Unknown" {
			n.t.Errorf("the container of %s has restarted %d times, and ended with %+v", name, main.RestartCount, last)
		}
	}
	for _, first := range n.find("one").Status.InitContainerStatuses {
		if end := first.State.Terminated; first.RestartCount != 1 || end == nil || end.ExitCode != 0 {
			n.t.Errorf("the init container is %+v, want a second one", first)
		}
	}
	never := n.awaitPod("never", "Failed", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if end := status(never).State.Terminated; end == nil || end.ExitCode != 255 || status(never).RestartCount != 0 {
		n.t.Errorf("the container that is never restarted is %+v", status(never))
	}
	if done := n.find("done"); done.Status.Phase != v1.PodSucceeded || status(done).RestartCount != 0 {
		n.t.Errorf("the pod that had done its work is %+v", done.Status)
	}
	sandboxes, err := filepath.Glob(filepath.Join(n.Layout.PodLogs(), "*_one-*", "main", "*.log"))
	if err != nil || len(sandboxes) != 2 || !strings.HasSuffix(sandboxes[1], "1.log") {
		n.t.Errorf("the logs of the container are %v, %v", sandboxes, err)
	}
}
