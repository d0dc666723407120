package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// books are the records on disk, which only this process writes. A record is written while the lock of its directory is
// held.
type books struct {
	layout
	// changed is called when the volumes in use may have changed.
	changed func()

	mu sync.Mutex
	// unread is why the records could not all be found; nil when they were. Until then nobody knows who uses a volume.
	unread error
	users  map[place]record
	staged map[identity]record
	// broken are the records that cannot be read, by their files.
	broken map[string]brokenRecord
	// empty are the directories of staged volumes without a record, and emptyDevices the names of block devices without
	// one.
	empty, emptyDevices []string
}

// brokenRecord is a record that is there, but cannot be read.
type brokenRecord struct {
	err error
	// user is true for the record of a pod's volume, which is at place.
	user  bool
	place place
	// device is the name of a staged block device; empty for a file system.
	device string
}

// newBooks returns books without records.
func newBooks(l layout, changed func()) *books {
	return &books{layout: l, changed: changed, users: map[place]record{}, staged: map[identity]record{},
		broken: map[string]brokenRecord{}}
}

// open reads all records. If a directory of them cannot be listed, the books are unread.
func open(l layout, changed func()) *books {
	b := newBooks(l, changed)
	b.unread = b.load()
	return b
}

// load reads all records into empty books.
func (b *books) load() error {
	if err := errors.Join(b.openUsers(), b.openStaged(), b.openDevices()); err != nil {
		return fmt.Errorf("the records of CSI volumes cannot be listed, so nothing is known of the users of a volume: %w", err)
	}
	b.stageByUsers()
	return nil
}

// reload reads unread books again. Nobody has changed them since, because every change needs read ones.
func (b *books) reload() error {
	fresh := newBooks(b.layout, b.changed)
	err := fresh.load()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unread = err; err == nil {
		b.users, b.staged, b.broken = fresh.users, fresh.staged, fresh.broken
		b.empty, b.emptyDevices = fresh.empty, fresh.emptyDevices
	}
	return err
}

// isRead returns nil if all records are known.
func (b *books) isRead() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unread
}

// openUsers reads the records of the volumes of pods.
func (b *books) openUsers() error {
	pods, err := list(filepath.Join(b.root, "pods"))
	if err != nil {
		return err
	}
	for _, uid := range pods {
		names, err := list(filepath.Join(b.root, "pods", uid, "volumes", kindName))
		if err != nil {
			return err
		}
		for _, name := range names {
			p := place{pod: types.UID(uid), name: name}
			if r, ok := b.read(b.userFile(p), brokenRecord{user: true, place: p}); ok {
				r.place = p
				b.users[p] = r
			}
		}
	}
	return nil
}

// openStaged reads the records of staged file systems.
func (b *books) openStaged() error {
	drivers, err := list(b.plugin())
	if err != nil {
		return err
	}
	for _, driver := range drivers {
		if driver == filepath.Base(b.devices()) {
			continue
		}
		sums, err := list(filepath.Join(b.plugin(), driver))
		if err != nil {
			return err
		}
		for _, sum := range sums {
			dir := filepath.Join(b.plugin(), driver, sum)
			file := filepath.Join(dir, dataFile)
			if r, ok := b.read(file, brokenRecord{}); ok {
				b.staged[r.identity] = r
			} else if !b.isBroken(file) {
				b.empty = append(b.empty, dir)
			}
		}
	}
	return nil
}

// openDevices reads the records of block devices. A kubelet has none of their users, but their links.
func (b *books) openDevices() error {
	names, err := list(b.devices())
	if err != nil {
		return err
	}
	for _, name := range names {
		data := filepath.Join(b.devices(), name, "data")
		file := filepath.Join(data, dataFile)
		s, staged := b.read(file, brokenRecord{device: name})
		s.identity.block, s.identity.name = true, name
		if staged {
			b.staged[s.identity] = s
		} else if !b.isBroken(file) {
			b.emptyDevices = append(b.emptyDevices, name)
		}
		targets, err := list(filepath.Join(b.devices(), "publish", name))
		if err != nil {
			return err
		}
		files, err := list(data)
		if err != nil {
			return err
		}
		for _, file := range files {
			if uid, ok := strings.CutSuffix(file, ".json"); ok && file != dataFile {
				targets = append(targets, uid)
			}
		}
		for _, uid := range targets {
			p := place{pod: types.UID(uid), name: name, block: true}
			u, ok := b.read(b.userFile(p), brokenRecord{user: true, place: p})
			switch {
			case !ok && !staged:
				continue
			case !ok:
				u = s
				u.phase = uncertain
			}
			u.place, u.identity.block, u.identity.name = p, true, name
			b.users[p] = u
		}
	}
	return nil
}

// read reads a record, if there is one. What is known of one that cannot be read is passed in.
func (b *books) read(file string, known brokenRecord) (record, bool) {
	r, err := read(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		known.err = err
		b.broken[file] = known
	}
	return r, err == nil
}

// list returns the names in a directory; none if it is missing or a file.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	var names []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	return names, err
}

// user returns the record of a pod's volume.
func (b *books) user(p place) (record, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, ok := b.users[p]
	return r, ok
}

// isUsed reports whether a pod has a volume.
func (b *books) isUsed(v identity) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.users {
		if r.identity == v {
			return true
		}
	}
	return false
}

// isInPlace reports whether a volume is staged or published, and has been since a boot.
func (b *books) isInPlace(v identity, boot string) bool {
	staged, users := b.all()
	return slices.ContainsFunc(slices.Concat(staged, users), func(r record) bool {
		return r.identity == v && r.phase == done && r.boot == boot
	})
}

// stagedOne returns the record of a staged volume; nil if there is none.
func (b *books) stagedOne(v identity) *record {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r, ok := b.staged[v]; ok {
		return &r
	}
	return nil
}

// rival returns the record of a staged block device of the same name, which is another volume; nil if there is none.
func (b *books) rival(v identity) *record {
	b.mu.Lock()
	defer b.mu.Unlock()
	for other, r := range b.staged {
		if v.block && other.block && other.name == v.name && other != v {
			return &r
		}
	}
	return nil
}

// all returns all records.
func (b *books) all() (staged, users []record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.staged)), slices.Collect(maps.Values(b.users))
}

// putUser writes the record of a pod's volume.
func (b *books) putUser(r record) error {
	if err := write(b.userFile(r.place), r); err != nil {
		return err
	}
	b.mu.Lock()
	before, known := b.users[r.place]
	b.users[r.place] = r
	delete(b.broken, b.userFile(r.place))
	b.mu.Unlock()
	if !known || before.identity != r.identity || before.attach != r.attach {
		b.changed()
	}
	return nil
}

// putStaged writes the record of a staged volume.
func (b *books) putStaged(r record) error {
	if err := write(b.stagedFile(r.identity), r); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.staged[r.identity] = r
	delete(b.broken, b.stagedFile(r.identity))
	return nil
}

// dropUser removes the record of a pod's volume.
func (b *books) dropUser(p place) error {
	if err := drop(b.userFile(p)); err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.users, p)
	delete(b.broken, b.userFile(p))
	b.mu.Unlock()
	b.changed()
	return nil
}

// dropStaged removes the record of a staged volume.
func (b *books) dropStaged(v identity) error {
	if err := drop(b.stagedFile(v)); err != nil {
		return err
	}
	b.mu.Lock()
	delete(b.staged, v)
	delete(b.broken, b.stagedFile(v))
	b.mu.Unlock()
	b.changed()
	return nil
}

// drop removes the file of a record, and an incomplete new one.
func drop(file string) error { return errors.Join(remove(file), remove(file+".tmp")) }

// remove removes a file or an empty directory, which may be missing.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// inUse returns the names of the volumes that are attached to the node and must stay so.
func (b *books) inUse() []v1.UniqueVolumeName {
	staged, users := b.all()
	names := map[v1.UniqueVolumeName]bool{}
	for _, r := range slices.Concat(staged, users) {
		if r.attach {
			names[v1.UniqueVolumeName(r.uniqueName())] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
