package csi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/blockdevice"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// Unmount implements persistentvolumes.Kind.
func (p *Plugin) Unmount(ctx context.Context, dir string) error {
	if err := p.books.isRead(); err != nil {
		return err
	}
	at := placeOf(dir)
	p.books.readOne(p.books.userFile(at))
	r, known := p.books.user(at)
	if known && r.phase == done { // a pod that comes back gets it anew
		r.phase = uncertain
		if err := p.books.putUser(r); err != nil {
			return err
		}
	}
	if at.block {
		answered := volumes.Asking(ctx, blockDevice)
		err := blockdevice.Release(p.books.held(at), p.mounted)
		answered()
		if err != nil {
			return err
		}
	}
	if known && mustUnpublish(r) {
		if err := p.unpublish(ctx, r); err != nil {
			return err
		}
	}
	target := p.books.target(at)
	mounted, err := p.mounted(target)
	if err != nil {
		return err
	}
	if mounted && !known {
		return fmt.Errorf("%s is mounted, and its record %s is missing or cannot be read: ask the driver to unpublish it, or unmount it", target, p.books.userFile(at))
	}
	if mounted {
		return fmt.Errorf("the driver %s has unpublished the volume, but %s is still mounted", r.driver, target)
	}
	// As in the kubelet: a driver should remove the target, but some leave it.
	if err := remove(target); err != nil {
		return err
	}
	if err := p.books.dropUser(at); err != nil {
		return err
	}
	p.freed(r.identity)
	if !p.books.isUsed(r.identity) {
		p.sizes.drop(r.identity)
	}
	if at.block && p.books.stagedOne(r.identity) == nil {
		if err := p.forgetDevice(identity{name: at.name}); err != nil {
			return err
		}
	}
	return remove(dir)
}

// unpublish asks the driver to unpublish a pod's volume.
func (p *Plugin) unpublish(ctx context.Context, r record) error {
	n, err := p.connect(r.driver, false) // as in the kubelet, its capabilities do not matter
	if err != nil {
		return fmt.Errorf("%s: Unmounter.TearDownAt failed to get CSI client: %w", pluginName, err)
	}
	_, err = n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
		VolumeId: r.handle, TargetPath: p.driverPath(p.books.target(r.place)),
	})
	if err != nil {
		return fmt.Errorf("%s: Unmounter.TearDownAt failed: %w", pluginName, err)
	}
	return nil
}

// unstage asks the driver to unstage a volume, unless a pod uses it again.
func (p *Plugin) unstage(ctx context.Context, v identity) error {
	unlock, err := p.lock(ctx, v, v.driver)
	if err != nil {
		return err
	}
	defer unlock()
	r := p.books.stagedOne(v)
	if _, users := p.books.all(); r == nil || len(idle([]record{*r}, users)) == 0 {
		return nil
	}
	begun := p.cfg.Clock.Now()
	if err = p.checkUnused(v); err == nil {
		err = p.callUnstage(ctx, v, r)
	}
	operation := "unmount_device"
	if v.block {
		operation = "unmap_device"
	}
	p.cfg.Measured(pluginName+":"+v.driver, operation, false, p.cfg.Clock.Since(begun), err)
	if err == nil {
		p.freed(v)
	}
	return err
}

// callUnstage asks the driver to unstage a volume with a record, and removes what is left of it. The caller has its
// lock.
func (p *Plugin) callUnstage(ctx context.Context, v identity, r *record) error {
	if r.phase == begun {
		return p.forgetStaged(v) // the driver does not stage volumes
	}
	staging := p.books.staging(v)
	n, err := p.node(ctx, v.driver, false)
	if err != nil {
		return fmt.Errorf("%s: attacher.UnmountDevice failed to create newCsiDriverClient: %w", pluginName, err)
	}
	if n.can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		if r.phase == done {
			r.phase = uncertain
			if err := p.books.putStaged(*r); err != nil {
				return err
			}
		}
		request := &csi.NodeUnstageVolumeRequest{VolumeId: v.handle, StagingTargetPath: p.driverPath(staging)}
		_, err := n.NodeUnstageVolume(ctx, request)
		if err != nil {
			return fmt.Errorf("%s: attacher.UnmountDevice failed: %w", pluginName, err)
		}
	}
	return p.forgetStaged(v)
}

// freed wakes the pods that wait for a volume, because other pods do not use it any more.
func (p *Plugin) freed(v identity) {
	_, users := p.books.all()
	for _, u := range users {
		if u.identity == v && u.phase == begun {
			p.cfg.Freed(u.pod)
		}
	}
}

// forgetStaged removes what is left of a volume that is not staged any more. The caller has its lock.
func (p *Plugin) forgetStaged(v identity) error {
	staging := p.books.staging(v)
	mounted, err := p.mounted(staging)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("the driver %s has unstaged the volume %q, but %s is still mounted", v.driver, v.handle, staging)
	}
	if err := p.removeStaging(v); err != nil {
		return err
	}
	if err := p.books.dropStaged(v); err != nil {
		return err
	}
	if v.block {
		return p.forgetDevice(v)
	}
	// The directory of the driver stays: another volume may be staged in it at this moment.
	if err := os.Remove(filepath.Dir(staging)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
