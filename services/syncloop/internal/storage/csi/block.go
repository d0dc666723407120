package csi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/rmtree"
)

// A block device has these paths, which are the kubelet's:
//
//	plugins/kubernetes.io/csi/volumeDevices/staging/PV        the driver stages it here
//	plugins/kubernetes.io/csi/volumeDevices/publish/PV/UID    the driver publishes it here: a device
//	plugins/kubernetes.io/csi/volumeDevices/PV/dev/UID        it is mounted here, and held with a loop device
//	plugins/kubernetes.io/csi/volumeDevices/PV/data/          the records
//	pods/UID/volumeDevices/kubernetes.io~csi/PV               the link to the published device, which containers get

// linkDevice makes the link of a pod to a device that need not be published yet. It is there before the record, because
// the volumes of a pod are found by their links.
func (p *Plugin) linkDevice(at place) error {
	link, target := p.books.dir(at), p.books.target(at)
	if to, err := os.Readlink(link); err == nil && to == target {
		return nil
	}
	if err := remove(link); err != nil {
		return err
	}
	return os.Symlink(target, link)
}

// mapDevice mounts a published device at the path where it is held, and holds it.
func (p *Plugin) mapDevice(at place) error {
	held := p.books.held(at)
	mounted, err := p.mounted(held)
	if err != nil {
		return err
	}
	if !mounted {
		if err := os.MkdirAll(filepath.Dir(held), folderMode); err != nil {
			return err
		}
		file, err := os.OpenFile(held, os.O_CREATE|os.O_RDONLY, dataMode)
		if err != nil {
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
		if err := unix.Mount(p.books.target(at), held, "", unix.MS_BIND, ""); err != nil {
			return &os.PathError{Op: "mount", Path: held, Err: err}
		}
	}
	return holdDevice(held)
}

// unmapDevice undoes mapDevice.
func (p *Plugin) unmapDevice(at place) error {
	held := p.books.held(at)
	if _, err := os.Lstat(held); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := releaseDevice(held); err != nil {
		return err
	}
	mounted, err := p.mounted(held)
	if err != nil {
		return err
	}
	if mounted {
		if err := unix.Unmount(held, unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: held, Err: err}
		}
	}
	return remove(held)
}

// forgetDevice removes the directories of a block device that is not staged any more. One that is in use is left: a pod
// uses the volume again.
func (p *Plugin) forgetDevice(v identity) error {
	top := filepath.Join(p.books.devices(), v.name)
	for _, dir := range []string{
		filepath.Join(p.books.devices(), "publish", v.name), filepath.Join(top, "dev"), filepath.Join(top, "data"), top,
	} {
		if err := remove(dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// removeStaging removes the path of a volume that is not staged any more. That of a device may have content, which
// belongs to the driver.
func (p *Plugin) removeStaging(v identity) error {
	if v.block {
		return rmtree.All(p.books.staging(v))
	}
	return remove(p.books.staging(v))
}
