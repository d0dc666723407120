package livenode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubectl/pkg/util/qos"
)

// cgroups is the mount point of the cgroups: of one hierarchy, or of several each in a directory of its own.
const cgroups = "/sys/fs/cgroup"

// PodCgroup returns the name of a pod's cgroup.
func (n *Node) PodCgroup(pod *v1.Pod) string {
	class := qos.GetPodQOS(pod)
	name := filepath.Join(n.Layout.CgroupRoot(), "kubepods")
	if class != v1.PodQOSGuaranteed {
		name = filepath.Join(name, strings.ToLower(string(class)))
	}
	return filepath.Join(name, "pod"+string(pod.UID))
}

// ReadCgroup reads a file of a cgroup: with cgroup v1 the first, in the hierarchy that its name begins with, with v2
// the second.
func ReadCgroup(name, v1File, v2File string) (string, error) {
	controller, _, _ := strings.Cut(v1File, ".")
	path := filepath.Join(cgroups, controller, name, v1File)
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		path = filepath.Join(cgroups, name, v2File)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read a file of a pod's cgroup: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// Cgroups returns the directories of a cgroup in all hierarchies; none when it does not exist.
func Cgroups(name string) ([]string, error) {
	parents, err := filepath.Glob(cgroups + "/*")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, parent := range append(parents, cgroups) {
		dir := filepath.Join(parent, name)
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		} else if !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "not a directory") {
			return nil, err
		}
	}
	return dirs, nil
}
