package executor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Leftovers returns the pods that have devices or resource claims, or a folder of logs or files on the node, for
// CleanUpPod. The names of the folders give the UID, and with logs the name and the namespace.
func (m *Manager) Leftovers() ([]*v1.Pod, error) {
	logs, err := folders(m.cfg.PodLogsDir)
	if err != nil {
		return nil, fmt.Errorf("the pods' logs: %w", err)
	}
	files, err := folders(filepath.Join(m.cfg.RootDir, "pods"))
	if err != nil {
		return nil, fmt.Errorf("the pods' files: %w", err)
	}
	var pods []*v1.Pod
	named := map[string]bool{}
	for _, folder := range logs {
		// A folder of logs is named NAMESPACE_NAME_UID; none of the three parts can contain the separator. Other folders
		// belong to no pod.
		parts := strings.Split(folder, "_")
		if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
			continue
		}
		named[parts[2]] = true
		pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: parts[0], Name: parts[1], UID: types.UID(parts[2]),
		}})
	}
	for _, uid := range slices.Concat(m.cfg.Devices.Pods(), m.cfg.ResourceClaims.Pods()) {
		files = append(files, string(uid))
	}
	for _, uid := range files {
		if !named[uid] {
			named[uid] = true
			pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}})
		}
	}
	return pods, nil
}

// folders returns the names of the folders in dir; none if dir does not exist.
func folders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}
