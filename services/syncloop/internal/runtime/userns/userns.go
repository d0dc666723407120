// Package userns assigns blocks of the host's user and group IDs to pods with their own user namespace (spec.hostUsers:
// false). The blocks of pods do not overlap, so that a process that escapes from its container has no access to the
// files of other pods. A pod's block is stored in a file in its folder, with the kubelet's name and format, and is
// valid as long as the folder exists: any later process, of Quartet or a kubelet, finds it. There is no other state.
package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

const (
	// DefaultPerPod is the number of IDs of a pod if the configuration does not set it. It is the kubelet's, and covers
	// the 16-bit IDs of files in images.
	DefaultPerPod = 1 << 16
	// fileName is the kubelet's name of the file in a pod's folder.
	fileName = "userns"
	fileMode = 0o644
	dirMode  = 0o750
)

// Config holds the dependencies and settings of an Allocator.
type Config struct {
	// PodsDir is the folder that holds one folder for each pod, named by its UID. Required.
	PodsDir string
	// PerPod is the number of IDs of a pod; 0 is DefaultPerPod.
	PerPod uint32
	// Subordinate returns the host's IDs for pods; it is called until it has succeeded once. Required.
	Subordinate func(perPod uint32) (Range, error)
}

// Range is Length IDs from First on, for users and groups alike.
type Range struct {
	First, Length uint32
}

// Allocator assigns IDs to pods. Its methods may be called from any goroutine.
type Allocator struct {
	cfg Config

	mu    sync.Mutex // held over reads and writes of files, so that no two pods get the same IDs
	whole *Range
}

// New returns an Allocator. It reads nothing.
func New(cfg Config) *Allocator {
	if cfg.PerPod == 0 {
		cfg.PerPod = DefaultPerPod
	}
	return &Allocator{cfg: cfg}
}

// Of returns the IDs of a pod. The first call for a pod chooses them and writes them to the disk before it returns. Of
// fails if no IDs are left, if files cannot be read or written, or if the UID cannot be the name of a folder.
func (a *Allocator) Of(uid types.UID) (containerspec.IDs, error) {
	if name := string(uid); name == "" || name != filepath.Base(name) || name == "." || name == ".." {
		return containerspec.IDs{}, fmt.Errorf("metadata.uid: %q cannot name a folder", uid)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ids, err := a.read(string(uid))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return ids, err
	}
	if ids, err = a.choose(string(uid)); err != nil {
		return containerspec.IDs{}, err
	}
	return ids, a.write(string(uid), ids)
}

// choose returns IDs that no other pod has. The search begins at a place derived from the UID, so that the IDs of a
// removed pod are not reused at once.
func (a *Allocator) choose(uid string) (containerspec.IDs, error) {
	if a.whole == nil {
		whole, err := a.cfg.Subordinate(a.cfg.PerPod)
		if err != nil {
			return containerspec.IDs{}, err
		}
		a.whole = &whole
	}
	taken, err := a.taken()
	if err != nil {
		return containerspec.IDs{}, err
	}
	slots := uint64(a.whole.Length / a.cfg.PerPod)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid)) // a hash never fails
	for i := range slots {
		slot := (uint64(hash.Sum32()) + i) % slots
		ids := containerspec.IDs{First: a.whole.First + uint32(slot)*a.cfg.PerPod, Length: a.cfg.PerPod} //nolint:gosec // within the range
		if free(ids, taken) {
			return ids, nil
		}
	}
	return containerspec.IDs{}, fmt.Errorf("the %d IDs from %d on are enough for %d pods with a user namespace, and all are in use: give the user %s more subordinate IDs",
		a.whole.Length, a.whole.First, slots, owner)
}

func free(ids containerspec.IDs, taken []containerspec.IDs) bool {
	for _, other := range taken {
		first, end := uint64(ids.First), uint64(ids.First)+uint64(ids.Length)
		if first < uint64(other.First)+uint64(other.Length) && uint64(other.First) < end {
			return false
		}
	}
	return true
}

// taken returns the IDs that pods have.
func (a *Allocator) taken() ([]containerspec.IDs, error) {
	pods, err := os.ReadDir(a.cfg.PodsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("user namespaces of other pods: %w", err)
	}
	var taken []containerspec.IDs
	for _, pod := range pods {
		ids, err := a.read(pod.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("user namespace of another pod: %w", err)
		default:
			taken = append(taken, ids)
		}
	}
	return taken, nil
}

// file is the format of a pod's file.
type file struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

func (a *Allocator) path(uid string) string { return filepath.Join(a.cfg.PodsDir, uid, fileName) }

// read reads a pod's file. It fails unless the file has exactly one range that is the same for users and groups and
// starts at the pod's root.
func (a *Allocator) read(uid string) (containerspec.IDs, error) {
	path := a.path(uid)
	text, err := os.ReadFile(path)
	if err != nil {
		return containerspec.IDs{}, fmt.Errorf("user namespace: %w", err)
	}
	var f file
	err = json.Unmarshal(text, &f)
	if err == nil && (len(f.UIDs) != 1 || len(f.GIDs) != 1 || f.UIDs[0] != f.GIDs[0] || f.UIDs[0].ContainerID != 0 ||
		f.UIDs[0].HostID == 0 || f.UIDs[0].Length == 0) {
		err = errors.New("it must have one range of IDs, the same for users and groups, which maps the pod's ID 0 to another one of the host")
	}
	if err != nil {
		return containerspec.IDs{}, fmt.Errorf("user namespace: %s: %w: stop the pod and remove the file", path, err)
	}
	return containerspec.IDs{First: f.UIDs[0].HostID, Length: f.UIDs[0].Length}, nil
}

func (a *Allocator) write(uid string, ids containerspec.IDs) error {
	one := []mapping{{HostID: ids.First, Length: ids.Length}}
	text, err := json.Marshal(file{UIDs: one, GIDs: one})
	if err != nil {
		return fmt.Errorf("user namespace: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(a.path(uid)), dirMode); err != nil {
		return fmt.Errorf("user namespace: %w", err)
	}
	if err := statedir.WriteFileAtomic(a.path(uid), text, fileMode); err != nil {
		return fmt.Errorf("user namespace: %w", err)
	}
	return nil
}
