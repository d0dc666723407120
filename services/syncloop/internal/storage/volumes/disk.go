package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
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

// findPeriod is the time between two attempts to list the pods' directories.
const findPeriod = 10 * time.Second

// findLeft finds the volumes that an earlier process has left. Without a list of the pods' directories they stay as
// they are: no volume is removed because it is not in a list.
func (m *Manager) findLeft() {
	uids, err := folders(m.cfg.PodsDir)
	if err != nil {
		err = fmt.Errorf("the volumes of an earlier syncloop are not known: %w", err)
		m.cfg.Logger.Error("the directories of pods cannot be listed, and what is in them stays; retrying",
			telemetry.KeyFile, m.cfg.PodsDir, telemetry.KeyError, err)
	}
	all := map[types.UID][]key{}
	for _, uid := range uids {
		found, err := m.onDisk(types.UID(uid))
		if err != nil { // it affects only that pod, and is reported again when its volumes are removed
			m.cfg.Logger.Warn("the volumes that an earlier syncloop has left of a pod cannot be listed",
				telemetry.KeyPodUID, uid, telemetry.KeyError, err)
			continue
		}
		all[types.UID(uid)] = found
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, found := range all {
		if m.pods[uid] == nil { // the volumes of a pod that is known are found when it is released
			m.add(uid, found)
		}
	}
	m.unread, m.findAgain = err, m.cfg.Clock.Now().Add(findPeriod)
}

// lookAgain lists the pods' directories again if they could not be listed and it is time. It returns when the next
// attempt is due; zero if none is.
func (m *Manager) lookAgain(now time.Time) (again time.Time) {
	m.mu.Lock()
	unread, due := m.unread, m.findAgain
	m.mu.Unlock()
	if unread == nil || now.Before(due) {
		if unread == nil {
			return time.Time{}
		}
		return due
	}
	m.findLeft()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unread != nil {
		return m.findAgain
	}
	m.cfg.Logger.Info("the volumes of an earlier syncloop are known now")
	m.signal()
	return time.Time{}
}

// Unread returns why the volumes of an earlier process are not known; nil if they are.
func (m *Manager) Unread() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unread
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
