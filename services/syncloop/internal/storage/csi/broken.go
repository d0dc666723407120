package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// A record that is there but cannot be read, because of an error of the disk or damage, is that of a volume that is in
// use until the opposite is known:
//
//   - The record of a pod's block device names its volume by its path, and the staged record has the rest.
//   - The record of a pod's file system does not. Nothing that it may use is unstaged (see checkUnused).
//   - A staged record is replaced by that of a pod with the volume, if there is one (see stageByUsers).
//
// Such records are read again from time to time, and before a pod's volume is mounted or unmounted.

// isBroken reports whether a record cannot be read.
func (b *books) isBroken(file string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, is := b.broken[file]
	return is
}

// allBroken returns the records that cannot be read, by their files.
func (b *books) allBroken() map[string]brokenRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.broken)
}

// stageByUsers takes a volume whose staged record cannot be read for staged, if a pod has it: its own record says which
// volume it is, so that it is unstaged when the pod goes.
func (b *books) stageByUsers() {
	for _, u := range b.users {
		_, staged := b.staged[u.identity]
		if _, is := b.broken[b.stagedFile(u.identity)]; is && !staged && !u.inline {
			b.staged[u.identity] = record{identity: u.identity, phase: uncertain, attach: u.attach, label: u.label}
		}
	}
}

// readBroken reads all records again that could not be read, and reports whether one is known now or gone.
func (b *books) readBroken() (changed bool) {
	for file := range b.allBroken() {
		changed = b.readOne(file) || changed
	}
	return changed
}

// readOne reads a record again if it could not be read, and reports whether it is known now or gone. Its owner may
// write or remove it meanwhile: it is then not broken any more.
func (b *books) readOne(file string) (changed bool) {
	if !b.isBroken(file) {
		return false
	}
	r, err := read(file)
	b.mu.Lock()
	defer b.mu.Unlock()
	known, still := b.broken[file]
	switch {
	case !still:
		return false
	case err == nil:
		b.adopt(r, known)
	case !errors.Is(err, fs.ErrNotExist):
		known.err = err
		b.broken[file] = known
		return false
	}
	delete(b.broken, file)
	return true
}

// adopt takes over a record that can be read again. The caller holds the mutex.
func (b *books) adopt(r record, known brokenRecord) {
	if known.user {
		r.place = known.place
		if r.place.block {
			r.identity.block, r.identity.name = true, r.place.name
		}
		b.users[r.place] = r
		return
	}
	if known.device != "" {
		r.identity.block, r.identity.name = true, known.device
	}
	b.staged[r.identity] = r
}

// isTakenByUnknown reports whether another pod of the node has a volume of the same name, whose record cannot be read.
func (b *books) isTakenByUnknown(me place) bool {
	for _, broken := range b.allBroken() {
		if broken.user && broken.place.name == me.name && broken.place.pod != me.pod {
			return true
		}
	}
	return false
}

// checkUnused fails if a volume without known users may be in use after all. A kubelet looks at the mount table too
// before it unstages a volume.
func (p *Plugin) checkUnused(v identity) error {
	if v.block {
		return p.checkDevice(v)
	}
	staging := p.books.staging(v)
	refs, err := p.cfg.Mounts.Refs(staging)
	if err != nil {
		return fmt.Errorf("find the other mounts of %s: %w", staging, err)
	}
	// The same path may be seen again where the file system of the root directory is mounted.
	own, _ := strings.CutPrefix(staging, p.books.root)
	refs = slices.DeleteFunc(refs, func(ref string) bool { return strings.HasSuffix(ref, own) })
	if len(refs) > 0 {
		return fmt.Errorf("the volume staged at %s is still mounted at %s: unmount that if no pod uses it",
			staging, strings.Join(refs, ", "))
	}
	return p.checkUnknown(v)
}

// checkDevice fails if a pod has a block device, which is published for it or held. A missing directory has none.
func (p *Plugin) checkDevice(v identity) error {
	for _, dir := range []string{
		filepath.Join(p.books.devices(), v.name, "dev"), filepath.Join(p.books.devices(), "publish", v.name),
	} {
		pods, err := list(dir)
		if err != nil {
			return err
		}
		for _, uid := range pods {
			at := filepath.Join(dir, uid)
			if mounted, err := p.mounted(at); err != nil {
				return err
			} else if mounted {
				return fmt.Errorf("the block device %s is still mounted at %s: unmount that if no pod uses it", v.name, at)
			}
		}
	}
	return nil
}

// checkUnknown fails if a pod whose record cannot be read may use a file system that is staged. What is mounted for
// such a pod tells its volume, if the driver has bound it.
func (p *Plugin) checkUnknown(v identity) error {
	staged, _ := p.books.all()
	for file, broken := range p.books.allBroken() {
		if !broken.user || broken.place.block {
			continue
		}
		target := p.books.target(broken.place)
		refs, err := p.cfg.Mounts.Refs(target)
		if err != nil {
			return fmt.Errorf("find the other mounts of %s: %w", target, err)
		}
		if slices.ContainsFunc(staged, func(r record) bool {
			return !r.identity.block && r.identity != v && slices.Contains(refs, p.books.staging(r.identity))
		}) {
			continue
		}
		return fmt.Errorf("the pod %s may use the volume, because the record %s cannot be read: %w; repair it, or "+
			"unmount %s and remove the record if the pod is gone", broken.place.pod, file, broken.err, target)
	}
	return nil
}
