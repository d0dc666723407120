package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/subpath"
)

// onDisk returns the volumes of known kinds that have a directory. It does not access the volumes, because a mounted
// one may hang.
func (m *Manager) onDisk(uid types.UID) ([]key, error) {
	if uid == "" || uid == "." || uid == ".." || strings.ContainsAny(string(uid), "/\x00") {
		return nil, nil // the paths would belong to something else
	}
	var found []key
	named := map[string]bool{}
	for _, plugin := range m.cfg.Plugins {
		// A block device is a link to the path where it is published.
		links := strings.HasPrefix(plugin.Name(), devicesPrefix)
		names, err := entries(filepath.Dir(m.dir(key{pod: uid, plugin: plugin.Name(), name: "any"})), links)
		if err != nil {
			return nil, fmt.Errorf("the volumes of pod %s: %w", uid, err)
		}
		for _, name := range names {
			found = append(found, key{pod: uid, plugin: plugin.Name(), name: name})
			named[name] = true
		}
	}
	names, err := folders(filepath.Join(m.podDir(uid), subpath.Dir))
	if err != nil {
		return nil, fmt.Errorf("the sub-paths of pod %s: %w", uid, err)
	}
	// A path of the node has no directory except that of its sub-paths.
	for _, name := range names {
		if host := (HostPath{}).Name(); !named[name] && m.plugin(host) != nil {
			found = append(found, key{pod: uid, plugin: host, name: name})
		}
	}
	return found, nil
}

// folders lists the names of the directories in one by its own entries. A missing one has none, and names with a
// leading dot are no volumes or pods.
func folders(dir string) ([]string, error) { return entries(dir, false) }

// entries lists the names of directories as folders does, and of symbolic links if links is true.
func entries(dir string, links bool) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if (entry.IsDir() || links && entry.Type() == fs.ModeSymlink) && !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}
