// Package persistentvolumes sets up the volumes of claims: it finds out which persistent volume a claim of a pod is
// bound to, and passes it to the [Kind] of its source, for example CSI. It implements plugins of package volumes:
//
//   - One for claims (persistentVolumeClaim, ephemeral). Its name "kubernetes.io~claim" exists in memory only. It
//     mounts the persistent volume at the kubelet's directory of the kind, and remembers where.
//   - One for volumes of a pod's spec of kinds that CSI drivers have replaced (see csimigration), which does the same.
//   - One for each kind. It sets up the volumes of that kind that a pod's spec contains itself (Kind.Inline), and
//     removes what is found on disk, from the path alone.
//   - One for the block devices of each kind, which removes those found on disk.
//
// The directories are the kubelet's. A pod's directory of another process is taken over, also of a kubelet:
//
//	ROOT/pods/UID/volumes/KIND/PV, for example ROOT/pods/UID/volumes/kubernetes.io~csi/pvc-1
//	ROOT/pods/UID/volumeDevices/KIND/PV, for block devices
//
// Mount and Unmount of one directory never run at the same time. A kind decides itself where containers get the volume
// (the result of Mount), because that is DIR/mount for CSI, DIR for NFS, and a path elsewhere for hostPath.
package persistentvolumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/csimigration"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/dirlock"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// The directories of a pod with volumes and block devices, and the mode of those that are created in them.
const (
	volumesFolder = "volumes"
	devicesFolder = "volumeDevices"
	folderMode    = 0o750
)

// Claims returns the claims of pods.
type Claims interface {
	// Claim returns the claim of a pod's volume, which is a persistentVolumeClaim or ephemeral, and the persistent volume
	// that it is bound to. It fails while there is none: its error says what the claim waits for.
	Claim(ctx context.Context, pod *v1.Pod, v *v1.Volume) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error)
}

// Kind is a source of persistent volumes. Its methods are called concurrently, but not for the same directory. They may
// take long and may hang: only the volume waits for them.
type Kind interface {
	// Name is the kubelet's directory of the kind, for example "kubernetes.io~csi".
	Name() string
	// Supports reports whether a persistent volume is of this kind.
	Supports(pv *v1.PersistentVolume) bool
	// Inline reports whether a volume of a pod's spec is of this kind without a persistent volume.
	Inline(v *v1.Volume) bool
	// Mount sets the volume up at Request.Dir, whose parent exists, and returns the path that containers mount, or the
	// block device. It is called again after a failure, after a restart of the process while containers use the volume,
	// and each time the pod is looked at: correct content stays unchanged, and that must be cheap. Its error is shown to
	// the user after the volume's name: it contains the cause, and no secret.
	Mount(ctx context.Context, r Request) (path string, err error)
	// Unmount removes the result of Mount at dir, even if that is incomplete. It receives only the path, because the pod
	// and the persistent volume may be unknown. It never removes anything below a mount point that is still mounted: then
	// it fails. A missing volume is no error.
	Unmount(ctx context.Context, dir string) error
}

// Request is a volume to mount. Nothing in it may be changed.
type Request struct {
	// Pod is the pod with the volume, and Volume the volume in its spec.
	Pod    *v1.Pod
	Volume *v1.Volume
	// Claim and PV are the claim and its persistent volume. Both are nil for a volume inline; one of a migrated kind has a
	// persistent volume that the cluster does not know.
	Claim *v1.PersistentVolumeClaim
	PV    *v1.PersistentVolume
	// Dir is the absolute path of the volume, without symbolic links.
	Dir string
	// FSGroup is the group that owns the content of the volume. Nil leaves owners unchanged.
	FSGroup *int64
	// FSGroupChangePolicy determines when owners are changed; nil means Always.
	FSGroupChangePolicy *v1.PodFSGroupChangePolicy
	// ReadOnly is true if the volume of the pod is a claim with readOnly.
	ReadOnly bool
	// Block is true for a block device.
	Block bool
	// Label is the SELinux label to mount the volume with; empty for none. Only a [Labeler] gets one.
	Label string
}

// Config holds the parameters of Plugins.
type Config struct {
	// Claims returns the claims of pods; nil if the node has none, and then pods with claims are not supported.
	Claims Claims
	// Kinds are the supported kinds. The first one that supports a volume is used.
	Kinds []Kind
	// Node returns the known Node, whose labels persistent volumes may require. Required.
	Node func(context.Context) (*v1.Node, error)
	// Labels decides with which SELinux labels volumes are mounted; nil for none.
	Labels *selinux.Labels
}

// place is where a volume is.
type place struct {
	kind Kind
	// dir is the volume's directory, and path the path that containers mount; empty until it is mounted.
	dir, path string
	// bound has the names of its claim, its persistent volume and its driver, which it may have.
	bound volumes.Bound
	// wanted is the SELinux label that it has, or would have if volumes of every access mode had one.
	wanted string
	traits volumes.Traits
}

// Driven is a Kind with drivers.
type Driven interface {
	// Driver returns the driver of the volume at a directory, also of one that an earlier process has mounted; empty if it
	// is not known.
	Driver(dir string) string
}

// dispatch is what the plugins share.
type dispatch struct {
	cfg   Config
	locks dirlock.Locks

	mu sync.Mutex
	// places has the volumes that may be mounted, by the directory in the requests of the volume manager.
	places map[string]place
	// refused has the names of the claims and persistent volumes of those that are not in places, because they cannot be
	// used as the pod wants.
	refused map[string]volumes.Bound
}

// Plugins returns the plugins for claims and for every kind.
func Plugins(cfg Config) []volumes.Plugin {
	d := &dispatch{cfg: cfg, places: map[string]place{}, refused: map[string]volumes.Bound{}}
	plugins := []volumes.Plugin{&claimPlugin{d}, &migratedPlugin{&claimPlugin{d}}}
	for _, kind := range cfg.Kinds {
		plugins = append(plugins, &kindPlugin{dispatch: d, kind: kind, name: kind.Name()},
			&kindPlugin{dispatch: d, kind: kind, name: devicesFolder + "/" + kind.Name()})
	}
	return plugins
}

// Where implements volumes.Elsewhere.
func (d *dispatch) Where(dir string) (at, path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.places[dir]
	return p.dir, p.path
}

// Claim implements volumes.Claimed.
func (d *dispatch) Claim(dir string) volumes.Bound {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p, known := d.places[dir]; known {
		return p.bound
	}
	return d.refused[dir]
}

// Traits implements volumes.Traited.
func (d *dispatch) Traits(dir string) volumes.Traits {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.places[dir].traits
}

// Refreshes implements volumes.Plugin, because claims grow, and drivers may require to be told of new tokens.
func (d *dispatch) Refreshes() bool { return true }

// remember records where a volume is.
func (d *dispatch) remember(dir string, p place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.places[dir] = p
}

// otherOfPod is what a volume waits for, for users, while another one of the pod with the same claim is worked on.
const otherOfPod = "other volume of the pod with the same persistent volume"

// mount mounts a volume for a request of the volume manager with a directory. It is known from the beginning, because a
// mount that fails may leave something.
func (d *dispatch) mount(ctx context.Context, dir string, kind Kind, r Request, wanted string) error {
	_, before := d.Where(dir)
	at := place{kind: kind, dir: r.Dir, path: before, wanted: wanted, bound: boundOf(r)}
	if r.PV != nil {
		at.traits.Group = groupOf(r.PV)
	}
	d.remember(dir, at)
	if err := os.MkdirAll(filepath.Dir(r.Dir), folderMode); err != nil {
		return err
	}
	unlock, err := volumes.Locked(ctx, &d.locks, r.Dir, otherOfPod)
	if err != nil {
		return err
	}
	defer unlock()
	if !r.Block {
		if is, err := isLink(r.Dir); err != nil {
			return err
		} else if is {
			return fmt.Errorf("%s is a symbolic link, and nothing is mounted through it: remove it", r.Dir)
		}
	}
	path, err := kind.Mount(ctx, r)
	if err != nil {
		return err
	}
	if at.traits.KeepsLabel, err = keepsLabel(kind, r, path); err != nil {
		return err
	}
	at.path = path
	d.remember(dir, at)
	return nil
}

// boundOf returns the source of a volume.
func boundOf(r Request) volumes.Bound {
	var b volumes.Bound
	if r.Claim != nil {
		b.Claim = r.Claim.Name
	}
	switch {
	case r.PV != nil && r.PV.Spec.CSI != nil:
		b.PersistentVolume, b.Driver, b.Migrated = r.PV.Name, r.PV.Spec.CSI.Driver, csimigration.IsMigrated(r.PV)
	case r.PV != nil:
		b.PersistentVolume = r.PV.Name
	case r.Volume.CSI != nil:
		b.Driver = r.Volume.CSI.Driver
	}
	return b
}

// unmount unmounts a volume.
func (d *dispatch) unmount(ctx context.Context, dir string, p place) error {
	unlock, err := volumes.Locked(ctx, &d.locks, p.dir, otherOfPod)
	if err != nil {
		return err
	}
	defer unlock()
	is, err := isLink(p.dir)
	switch {
	case err != nil:
	case is && !isDevice(p.dir):
		// Nothing is mounted through it. Whatever it leads to is somebody else's.
		err = os.Remove(p.dir)
	default:
		err = p.kind.Unmount(ctx, p.dir)
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.places, dir)
	return nil
}

// isLink reports whether a path is a symbolic link. It asks the parent directory, because a mount whose server is away
// would hang. It fails if that cannot be listed: nothing is done through what may be a link.
func isLink(path string) (bool, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.ContainsFunc(entries, func(entry fs.DirEntry) bool {
		return entry.Name() == filepath.Base(path) && entry.Type()&fs.ModeSymlink != 0
	}), err
}

// claimPlugin is the plugin for claims.
type claimPlugin struct{ *dispatch }

// Name implements volumes.Plugin. No directory has this name.
func (p *claimPlugin) Name() string { return "kubernetes.io~claim" }

// CanSupport implements volumes.Plugin.
func (p *claimPlugin) CanSupport(v *v1.Volume) bool {
	return p.cfg.Claims != nil && (v.PersistentVolumeClaim != nil || v.Ephemeral != nil)
}

// SetUp implements volumes.Plugin.
func (p *claimPlugin) SetUp(ctx context.Context, r volumes.Request) error {
	var claim *v1.PersistentVolumeClaim
	var pv *v1.PersistentVolume
	err := volumes.Waiting(ctx, func(ctx context.Context) (err error) {
		defer volumes.Asking(ctx, "persistentvolumeclaim "+r.Pod.Namespace+"/"+volumes.ClaimOf(r.Pod, r.Volume))()
		claim, pv, err = p.cfg.Claims.Claim(ctx, r.Pod, r.Volume)
		return err
	})
	if err != nil {
		return err
	}
	return p.setUp(ctx, r, claim, pv)
}

// setUp sets up the volume of a claim, or of a migrated kind without a claim, with its persistent volume.
func (p *claimPlugin) setUp(
	ctx context.Context, r volumes.Request, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume,
) error {
	mode := ptr.Deref(pv.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
	kind, err := p.usable(ctx, r, pv, mode)
	if p.refuse(r.Dir, claim, pv, err) != nil {
		return err
	}
	folder, block := volumesFolder, mode == v1.PersistentVolumeBlock
	if block {
		folder = devicesFolder
	}
	podDir := filepath.Dir(filepath.Dir(filepath.Dir(r.Dir)))
	request := Request{
		Pod: r.Pod, Volume: r.Volume, Claim: claim, PV: pv, Block: block,
		Dir:     filepath.Join(podDir, folder, kind.Name(), pv.Name),
		FSGroup: r.FSGroup, FSGroupChangePolicy: r.FSGroupChangePolicy,
		ReadOnly: r.Volume.PersistentVolumeClaim != nil && r.Volume.PersistentVolumeClaim.ReadOnly,
	}
	wanted, err := p.label(ctx, r.Dir, kind, &request)
	if err != nil {
		return err
	}
	return p.mount(ctx, r.Dir, kind, request, wanted)
}

// TearDown implements volumes.Plugin. A volume that this process has not set up is on disk, and removed by its kind.
func (p *claimPlugin) TearDown(ctx context.Context, dir string) error {
	p.mu.Lock()
	delete(p.refused, dir)
	at, known := p.places[dir]
	p.mu.Unlock()
	if !known {
		return nil
	}
	return p.unmount(ctx, dir, at)
}

// kindPlugin is the plugin for the volumes of a kind, or for its block devices.
type kindPlugin struct {
	*dispatch
	kind Kind
	name string
}

// Name implements volumes.Plugin.
func (p *kindPlugin) Name() string { return p.name }

// CanSupport implements volumes.Plugin. Only persistent volumes are block devices.
func (p *kindPlugin) CanSupport(v *v1.Volume) bool {
	return p.name == p.kind.Name() && p.kind.Inline(v)
}

// Where implements volumes.Elsewhere: these volumes are in the directory of their plugin.
func (p *kindPlugin) Where(dir string) (at, path string) {
	_, path = p.dispatch.Where(dir)
	return dir, path
}

// Claim implements volumes.Claimed.
func (p *kindPlugin) Claim(dir string) volumes.Bound {
	p.mu.Lock()
	at, known := p.places[dir]
	p.mu.Unlock()
	if known {
		return at.bound
	}
	if driven, ok := p.kind.(Driven); ok {
		return volumes.Bound{Driver: driven.Driver(dir)}
	}
	return volumes.Bound{}
}

// SetUp implements volumes.Plugin.
func (p *kindPlugin) SetUp(ctx context.Context, r volumes.Request) error {
	request := Request{
		Pod: r.Pod, Volume: r.Volume, Dir: r.Dir, FSGroup: r.FSGroup, FSGroupChangePolicy: r.FSGroupChangePolicy,
	}
	wanted, err := p.label(ctx, r.Dir, p.kind, &request)
	if err != nil {
		return err
	}
	return p.mount(ctx, r.Dir, p.kind, request, wanted)
}

// TearDown implements volumes.Plugin.
func (p *kindPlugin) TearDown(ctx context.Context, dir string) error {
	return p.unmount(ctx, dir, place{kind: p.kind, dir: dir})
}
