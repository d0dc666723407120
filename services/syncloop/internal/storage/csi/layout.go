package csi

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// The kubelet's names.
const (
	// pluginName is the kubelet's name of the plugin, and kindName that of the directories of pods' volumes.
	pluginName = "kubernetes.io/csi"
	kindName   = "kubernetes.io~csi"
	// dataFile is the name of a record, and stagingName that of the path that a file system is staged at.
	dataFile    = "vol_data.json"
	stagingName = "globalmount"
)

// place is the volume or the block device of a pod.
type place struct {
	pod types.UID
	// name is that of the persistent volume, or of an inline volume in the pod's spec.
	name  string
	block bool
}

// placeOf returns the place of a directory, which is ROOT/pods/UID/volumes/KIND/NAME, or volumeDevices.
func placeOf(dir string) place {
	folder := filepath.Dir(filepath.Dir(dir))
	return place{
		pod:  types.UID(filepath.Base(filepath.Dir(folder))),
		name: filepath.Base(dir), block: filepath.Base(folder) == "volumeDevices",
	}
}

// layout has the kubelet's paths below its root directory.
type layout struct{ root string }

// dir is the directory of a pod's volume; for a block device, a link to the target.
func (l layout) dir(p place) string {
	folder := "volumes"
	if p.block {
		folder = "volumeDevices"
	}
	return filepath.Join(l.root, "pods", string(p.pod), folder, kindName, p.name)
}

// target is the path that a driver publishes a volume at.
func (l layout) target(p place) string {
	if p.block {
		return filepath.Join(l.devices(), "publish", p.name, string(p.pod))
	}
	return filepath.Join(l.dir(p), "mount")
}

// held is the path at which a published block device is mounted and held.
func (l layout) held(p place) string {
	return filepath.Join(l.devices(), p.name, "dev", string(p.pod))
}

// userFile is the record of a pod's volume.
func (l layout) userFile(p place) string {
	if p.block {
		return filepath.Join(l.devices(), p.name, "data", string(p.pod)+".json")
	}
	return filepath.Join(l.dir(p), dataFile)
}

// plugin is the directory of the plugin, and devices that of block devices.
func (l layout) plugin() string  { return filepath.Join(l.root, "plugins", pluginName) }
func (l layout) devices() string { return filepath.Join(l.plugin(), "volumeDevices") }

// staging is the path that a driver stages a volume at. That of a file system depends on the driver and the handle, and
// that of a block device on the name of the persistent volume.
func (l layout) staging(v identity) string {
	if v.block {
		return filepath.Join(l.devices(), "staging", v.name)
	}
	return filepath.Join(l.plugin(), v.driver, fmt.Sprintf("%x", sha256.Sum256([]byte(v.handle))), stagingName)
}

// stagedFile is the record of a staged volume.
func (l layout) stagedFile(v identity) string {
	if v.block {
		return filepath.Join(l.devices(), v.name, "data", dataFile)
	}
	return filepath.Join(filepath.Dir(l.staging(v)), dataFile)
}

// identity is a volume on this node.
type identity struct {
	driver, handle string
	// block is true for a block device. name is then that of the persistent volume, and otherwise empty.
	block bool
	name  string
}

// uniqueName is the name of a volume in the Node's status.
func (v identity) uniqueName() string { return pluginName + "/" + v.driver + "^" + v.handle }

// inlineHandle is the handle of an inline volume.
func inlineHandle(pod types.UID, name string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(pod)+name)))
}

// attachmentName is the name of the VolumeAttachment of a volume and a node.
func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// isFileName reports whether a name cannot lead out of a directory.
func isFileName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
