package livenode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
)

// PodDir returns the folder of a pod on this machine, which has its volumes.
func (n *Node) PodDir(pod *v1.Pod) string {
	return filepath.Join(n.Layout.Root(), "pods", string(pod.UID))
}

// Mount is a mount on this machine.
type Mount struct {
	// ID is the kernel's mount ID. A new mount of the same file system has another one.
	ID int
	// Kind is its file system, for example "tmpfs".
	Kind string
}

// Mounts returns the mounts in a pod's folder, by path.
func (n *Node) Mounts(pod *v1.Pod) (map[string]Mount, error) {
	dir := n.PodDir(pod)
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	mounts := map[string]Mount{}
	for _, info := range infos {
		path := strings.TrimPrefix(info.Mountpoint, dir+"/")
		if mounts[path] != (Mount{}) {
			return nil, fmt.Errorf("%s is mounted twice, one over the other", path)
		}
		mounts[path] = Mount{ID: info.ID, Kind: info.FSType}
	}
	return mounts, nil
}

// Inside returns a path by which this machine sees the files of a running container as the container does, including
// its volumes.
func (n *Node) Inside(pod *v1.Pod, container string) (string, error) {
	dirs, err := Cgroups(n.PodCgroup(pod))
	if err != nil || len(dirs) == 0 {
		return "", fmt.Errorf("find the cgroup of the pod: %w", errors.Join(err, os.ErrNotExist))
	}
	for i := range pod.Status.ContainerStatuses {
		status := &pod.Status.ContainerStatuses[i]
		if status.Name != container {
			continue
		}
		_, id, _ := strings.Cut(status.ContainerID, "://")
		processes, err := os.ReadFile(filepath.Join(dirs[0], id, "cgroup.procs"))
		if err != nil {
			return "", fmt.Errorf("find the process of container %s: %w", container, err)
		}
		first, _, _ := strings.Cut(string(processes), "\n")
		if first == "" {
			return "", fmt.Errorf("container %s has no process", container)
		}
		return filepath.Join("/proc", first, "root"), nil
	}
	return "", fmt.Errorf("the pod has no container %s", container)
}
