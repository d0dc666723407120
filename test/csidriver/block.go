package csidriver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// deviceSize is the size of a volume that is a block device.
const deviceSize = 1 << 20

// Device is the file with the content of a volume that is a block device.
func (d *Driver) Device(handle string) string { return d.Volume(handle) + ".img" }

// attach attaches a loop device to the file of a volume, unless it has one, and returns the device.
func (d *Driver) attach(handle string) (string, error) {
	file := d.Device(handle)
	if err := os.MkdirAll(d.Volume(""), 0o755); err != nil {
		return "", err
	}
	if _, err := os.Stat(file); os.IsNotExist(err) {
		if err := os.WriteFile(file, make([]byte, deviceSize), 0o600); err != nil {
			return "", err
		}
	}
	if device, err := loopOf(file); err != nil || device != "" {
		return device, err
	}
	backing, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer backing.Close() //nolint:errcheck // the loop device keeps the file open
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close() //nolint:errcheck // nothing is written
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", err
		}
		device := fmt.Sprintf("/dev/loop%d", number)
		err = onDevice(device, unix.LOOP_SET_FD, int(backing.Fd()))
		if errors.Is(err, unix.EBUSY) { // another process has just taken it
			continue
		}
		return device, err
	}
}

// detach detaches the loop device of a volume.
func (d *Driver) detach(handle string) error {
	device, err := loopOf(d.Device(handle))
	if err == nil && device != "" {
		err = onDevice(device, unix.LOOP_CLR_FD, 0)
	}
	return err
}

// onDevice changes a loop device.
func onDevice(device string, request uint, value int) error {
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.IoctlSetInt(int(loop.Fd()), request, value), loop.Close())
}

// loopOf returns the loop device of a file; empty if it has none.
func loopOf(file string) (string, error) {
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, one := range all {
		if text, err := os.ReadFile(one); err == nil && strings.TrimSpace(string(text)) == file {
			return filepath.Join("/dev", strings.Split(one, "/")[3]), nil
		}
	}
	return "", nil
}

// publishDevice mounts the device of a volume at the target.
func (d *Driver) publishDevice(r *csi.NodePublishVolumeRequest) error {
	device, err := d.attach(r.GetVolumeId())
	if err != nil {
		return err
	}
	file, err := os.OpenFile(r.GetTargetPath(), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	d.publishes[r.GetTargetPath()] = cmp.Or(r.GetStagingTargetPath(), r.GetVolumeId())
	return bind(device, r.GetTargetPath(), false)
}
