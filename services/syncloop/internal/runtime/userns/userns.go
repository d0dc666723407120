// Package userns gives pods with a user namespace of their own (spec.hostUsers: false) their part of the host's user
// and group IDs. No two pods have an ID in common, so that whoever leaves his container has no right on another one's
// files. A pod's part is kept in a file of its folder, with the kubelet's name and in its form, and holds as long as
// the folder does: a new process, Quartet's or a kubelet, finds it. There is no other state.
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
	// DefaultPerPod is how many IDs a pod has where the configuration says nothing. The kubelet's number: what is written
	// in images has 16 bits.
	DefaultPerPod = 1 << 16
	// fileName is the kubelet's name for the file in a pod's folder.
	fileName = "userns"
	fileMode = 0o644
	dirMode  = 0o750
)

// Config is what an Allocator needs.
type Config struct {
	// PodsDir has one folder for each pod, named by its UID. Required.
	PodsDir string
	// PerPod is how many IDs a pod gets; 0 is DefaultPerPod.
	PerPod uint32
	// Subordinate says which IDs of the host are for pods; it is asked until it has answered once. Required.
	Subordinate func(perPod uint32) (Range, error)
}

// Range is the IDs from First on, Length of them, of users and of groups alike.
type Range struct {
	First, Length uint32
}

// Allocator gives pods their IDs. Its methods may be called from any goroutine.
type Allocator struct {
	cfg Config

	mu    sync.Mutex // over the reading and writing of files: two pods must not get the same IDs
	whole *Range
}

// New makes an Allocator. It looks at nothing yet.
func New(cfg Config) *Allocator {
	if cfg.PerPod == 0 {
		cfg.PerPod = DefaultPerPod
	}
	return &Allocator{cfg: cfg}
}

// Of returns the IDs of a pod. The first time it chooses some, and has them on disk before it returns. It fails when
// the node has none left, when its files cannot be read or written, or when the UID is no name of a folder.
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

// choose finds IDs that no other pod has. Where the search begins follows from the UID, so that the IDs of a pod that
// has just gone are not those of the next one.
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
	_, _ = hash.Write([]byte(uid)) // a hash takes everything
	for i := range slots {
		slot := (uint64(hash.Sum32()) + i) % slots
		ids := containerspec.IDs{First: a.whole.First + uint32(slot)*a.cfg.PerPod, Length: a.cfg.PerPod} //nolint:gosec // within the range
		if free(ids, taken) {
			return ids, nil
		}
	}
	return containerspec.IDs{}, fmt.Errorf("the %d IDs from %d on are for %d pods with a user namespace, and as many have one: give the user %s more subordinate IDs",
		a.whole.Length, a.whole.First, slots, owner)
}

func free(ids containerspec.IDs, taken []containerspec.IDs) bool {
	for _, other := range taken {
		if uint64(ids.First) < uint64(other.First)+uint64(other.Length) && uint64(other.First) < uint64(ids.First)+uint64(ids.Length) {
			return false
		}
	}
	return true
}

// taken are the IDs that pods have.
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

// file is the form of a pod's file.
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

// read reads a pod's file. What says anything but one range, of users and groups alike and from the pod's root on, is
// not ours to guess at.
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
