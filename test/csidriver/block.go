package csidriver

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
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
	if device, err := losetup("--noheadings", "--output", "NAME", "--associated", file); err != nil || device != "" {
		return device, err
	}
	return losetup("--find", "--show", file)
}

// detach detaches the loop device of a volume.
func (d *Driver) detach(handle string) error {
	file := d.Device(handle)
	if _, err := os.Stat(file); os.IsNotExist(err) {
		return nil
	}
	device, err := losetup("--noheadings", "--output", "NAME", "--associated", file)
	if err == nil && device != "" {
		_, err = losetup("--detach", device)
	}
	return err
}

func losetup(args ...string) (string, error) {
	out, err := exec.Command("losetup", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
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
