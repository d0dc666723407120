package volumes

import (
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// devicesPrefix begins the names of plugins for block devices, which the kubelet has in a directory of their own.
const devicesPrefix = "volumeDevices/"

// InPlace is a Plugin whose volumes are not in the pod's directory, so that nothing is created there.
type InPlace interface {
	// Path returns the path of a volume; empty for one without a path on the node.
	Path(v *v1.Volume) string
}

// Elsewhere is a Plugin that determines itself where the volumes of pods are. It creates their parent directories.
type Elsewhere interface {
	// Where returns the directory that a volume really has, which is ROOT/pods/UID/FOLDER/KIND/NAME, and the path that
	// containers mount. dir is the directory that SetUp receives. Both are empty for an unknown volume; the path also for
	// one that is not set up.
	Where(dir string) (at, path string)
}

// Claimed is a Plugin for volumes of claims and of drivers.
type Claimed interface {
	// Claim returns what is known about the source of a volume. dir is the directory that SetUp receives.
	Claim(dir string) Bound
}

// Bound is the source of a volume. What is not known, or what a volume does not have, is empty.
type Bound struct {
	// Claim and PersistentVolume are the names of the claim and of the persistent volume that it is bound to.
	Claim, PersistentVolume string
	// Driver is the name of the CSI driver.
	Driver string
	// Migrated is true for a volume of a kind that the driver has replaced.
	Migrated bool
}

// dir returns the directory of a volume for its plugin.
func (m *Manager) dir(k key) string {
	folder := k.plugin
	if !strings.Contains(folder, "/") {
		folder = filepath.Join("volumes", folder)
	}
	return filepath.Join(m.podDir(k.pod), folder, k.name)
}

// where returns the directory that a volume really has, which may be empty, and the path that containers mount.
func (m *Manager) where(k key) (at, path string) {
	if plugin, ok := m.plugin(k.plugin).(Elsewhere); ok {
		return plugin.Where(m.dir(k))
	}
	return m.dir(k), m.dir(k)
}

// kindOf returns the readable name of a volume's kind.
func (m *Manager) kindOf(k key) string {
	if at, _ := m.where(k); at != "" {
		return readableName(filepath.Base(filepath.Dir(at)))
	}
	return readableName(k.plugin)
}

// measuredKind returns the kubelet's name of a volume's kind in metrics, whether it is a block device, and whether a
// CSI driver has replaced its kind. Volumes of CSI drivers are told apart by driver.
func (m *Manager) measuredKind(k key) (name string, device, migrated bool) {
	name = m.kindOf(k)
	at, _ := m.where(k)
	device = filepath.Base(filepath.Dir(filepath.Dir(at))) == filepath.Clean(devicesPrefix)
	if claimed, ok := m.plugin(k.plugin).(Claimed); ok {
		b := claimed.Claim(m.dir(k))
		if migrated = b.Migrated; b.Driver != "" {
			name += ":" + b.Driver
		}
	}
	return name, device, migrated
}

// partsOf returns the name of the directory of a volume's sub-paths: as in the kubelet, the name of the volume's
// directory.
func (m *Manager) partsOf(k key) string {
	if at, _ := m.where(k); at != "" {
		return filepath.Base(at)
	}
	return k.name
}

// isPlaceOfOther reports whether a volume on disk is that of another one, whose plugin has put it there. The caller
// holds mu.
func (m *Manager) isPlaceOfOther(uid types.UID, found key) bool {
	known := m.pods[uid]
	if known == nil {
		return false
	}
	dir := m.dir(found)
	for k, s := range known.volumes {
		if k == found || !s.exists && !s.inSpec {
			continue
		}
		if _, ok := m.plugin(k.plugin).(Elsewhere); !ok {
			continue
		}
		if at, _ := m.where(k); at == dir {
			return true
		}
	}
	return false
}

// readableName returns the kubelet's readable name of a plugin: "kubernetes.io/empty-dir".
func readableName(plugin string) string {
	return strings.ReplaceAll(strings.TrimPrefix(plugin, devicesPrefix), "~", "/")
}
