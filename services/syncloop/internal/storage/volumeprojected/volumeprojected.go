// Package volumeprojected has the volumes in place whose files come from elsewhere: configMap, secret, downwardAPI and projected ones,
// each a plugin of package volumes. What the files are says package volumecontent; package atomicdir writes them. All but configMap
// volumes are in memory, and what is secret is never anywhere else.
package volumeprojected

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/atomicdir"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumecontent"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// tmpfs is the file system in memory.
const tmpfs = "tmpfs"

// mountPointMode is that of a folder in a volume that another one is mounted at.
const mountPointMode = 0o755

// Objects gives config maps and secrets as they are now. It fails with what apierrors.IsNotFound knows for one that is not there, and
// its errors have nothing of a secret in them.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gives tokens of the service accounts of pods.
type Tokens interface {
	// Token gives one that is bound to the pod, for an audience, the API server's when it is empty, good for about so many seconds when
	// it is new. Asked again it gives the same one until that is to be replaced.
	Token(ctx context.Context, pod *v1.Pod, audience string, expirationSeconds int64) (string, error)
}

// TrustBundles gives the roots of a cluster that pods check certificates by.
type TrustBundles interface {
	// Get gives those that a source chooses, as PEM, and fails with what apierrors.IsNotFound knows when there are none.
	Get(ctx context.Context, pod *v1.Pod, p *v1.ClusterTrustBundleProjection) ([]byte, error)
}

// Certificates gives keys with certificates to pods.
type Certificates interface {
	// Get gives those of the source of a volume that is at a place among its sources, PEM each, and fails while there are none.
	Get(ctx context.Context, pod *v1.Pod, volume string, source int, p *v1.PodCertificateProjection) (key, chain []byte, err error)
}

// Config is what the plugins need.
type Config struct {
	// Mounter mounts and unmounts. Required.
	Mounter volumes.Mounter
	// Memory is how many bytes of memory pods may use on this node, 0 when that is not known: the most that a volume is given.
	Memory func(context.Context) int64
	// Swappable is told of each file system in memory that may come to a swap device; nobody is when nil.
	Swappable func()
	// Objects gives config maps and secrets. Required.
	Objects Objects
	// Tokens gives tokens, TrustBundles roots, Certificates keys with certificates. Required for volumes with such sources.
	Tokens       Tokens
	TrustBundles TrustBundles
	Certificates Certificates
	// Node is the node as it is known to be: its allocatable resources stand in for limits that containers have not. Required.
	Node func(context.Context) (*v1.Node, error)
	// Clock names the versions of files. Required.
	Clock clock.PassiveClock
}

// Plugin is one of the kinds. Make all of them with Plugins.
type Plugin struct {
	cfg      Config
	name     string
	supports func(*v1.Volume) bool
	medium   v1.StorageMedium
	// folder makes and removes the folder, or what is mounted in its place.
	folder     *volumes.EmptyDir
	configMaps keeper[*v1.ConfigMap]
	secrets    keeper[*v1.Secret]
}

// Plugins are the plugins of the four kinds.
func Plugins(cfg Config) []volumes.Plugin {
	folder := &volumes.EmptyDir{Mounter: volumes.Unswapped{Mounter: cfg.Mounter, Swappable: cfg.Swappable}, Memory: cfg.Memory}
	plugin := func(name string, medium v1.StorageMedium, supports func(*v1.Volume) bool) volumes.Plugin {
		return &Plugin{cfg: cfg, name: name, medium: medium, supports: supports, folder: folder}
	}
	return []volumes.Plugin{
		plugin("kubernetes.io~configmap", v1.StorageMediumDefault, func(v *v1.Volume) bool { return v.ConfigMap != nil }),
		plugin("kubernetes.io~secret", v1.StorageMediumMemory, func(v *v1.Volume) bool { return v.Secret != nil }),
		plugin("kubernetes.io~downward-api", v1.StorageMediumMemory, func(v *v1.Volume) bool { return v.DownwardAPI != nil }),
		plugin("kubernetes.io~projected", v1.StorageMediumMemory, func(v *v1.Volume) bool { return v.Projected != nil }),
	}
}

// Name implements volumes.Plugin.
func (p *Plugin) Name() string { return p.name }

// CanSupport implements volumes.Plugin.
func (p *Plugin) CanSupport(v *v1.Volume) bool { return p.supports(v) }

// Refreshes implements volumes.Plugin: objects, labels and tokens change.
func (p *Plugin) Refreshes() bool { return true }

// SetUp implements volumes.Plugin. When what the files are made of cannot be had, a volume that is in place stays as it is. An object
// that is immutable is asked for once.
func (p *Plugin) SetUp(ctx context.Context, r volumes.Request) error {
	files, err := volumecontent.Of(r.Volume, p.inputs(ctx, r))
	if err != nil {
		return err
	}
	if r.Dir, err = resolved(r.Dir); err != nil {
		return err
	}
	if err := p.place(ctx, r); err != nil {
		return err
	}
	if err := makeMountPoints(r.Dir, volumecontent.MountPoints(r.Pod, r.Volume.Name)); err != nil {
		return err
	}
	_, err = atomicdir.Write(r.Dir, files, atomicdir.Options{Group: r.FSGroup, Now: p.cfg.Clock.Now()})
	return err
}

// TearDown implements volumes.Plugin.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	p.configMaps.forget(dir)
	p.secrets.forget(dir)
	real, err := resolved(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return p.folder.TearDown(ctx, real)
}

// resolved is a path as the mount table has it, with no links in it but the last name.
func resolved(dir string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	return filepath.Join(parent, filepath.Base(dir)), err
}

// inputs is what the files of a volume are made of.
func (p *Plugin) inputs(ctx context.Context, r volumes.Request) volumecontent.Inputs {
	namespace := r.Pod.Namespace
	return volumecontent.Inputs{
		Pod: r.Pod,
		ConfigMap: func(name string) (*v1.ConfigMap, error) {
			return p.configMaps.get(r.Dir, name, func() (*v1.ConfigMap, bool, error) {
				m, err := p.cfg.Objects.ConfigMap(ctx, namespace, name)
				return m, err == nil && m.Immutable != nil && *m.Immutable, err
			})
		},
		Secret: func(name string) (*v1.Secret, error) {
			return p.secrets.get(r.Dir, name, func() (*v1.Secret, bool, error) {
				s, err := p.cfg.Objects.Secret(ctx, namespace, name)
				return s, err == nil && s.Immutable != nil && *s.Immutable, err
			})
		},
		Token: func(audience string, expirationSeconds int64) (string, error) {
			return p.cfg.Tokens.Token(ctx, r.Pod, audience, expirationSeconds)
		},
		TrustBundle: func(s *v1.ClusterTrustBundleProjection) ([]byte, error) {
			return p.cfg.TrustBundles.Get(ctx, r.Pod, s)
		},
		Certificate: func(source int, s *v1.PodCertificateProjection) (key, chain []byte, err error) {
			return p.cfg.Certificates.Get(ctx, r.Pod, r.Volume.Name, source, s)
		},
		Allocatable: func() (v1.ResourceList, error) {
			node, err := p.cfg.Node(ctx)
			if err != nil {
				return nil, err
			}
			return node.Status.Allocatable, nil
		},
	}
}

// place has the folder of a volume in place, in memory where it has to be.
func (p *Plugin) place(ctx context.Context, r volumes.Request) error {
	if p.medium == v1.StorageMediumMemory {
		if kind, err := p.mountedAt(r.Dir); err != nil || kind == tmpfs {
			return err
		}
	}
	r.Volume = &v1.Volume{Name: r.Volume.Name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: p.medium}}}
	if err := p.folder.SetUp(ctx, r); err != nil || p.medium != v1.StorageMediumMemory {
		return err
	}
	switch kind, err := p.mountedAt(r.Dir); {
	case err != nil:
		return err
	case kind == "":
		return fmt.Errorf("nothing is mounted at %s: what may be secret is not written to the disk", r.Dir)
	case kind != tmpfs:
		return fmt.Errorf("%s is mounted at %s, where a tmpfs has to be for what may be secret; unmount it", kind, r.Dir)
	}
	return nil
}

// mountedAt is the kind of file system that is mounted at a folder last; empty when none is. The whole table is long, and it is read only
// when something else is mounted there than has to be.
func (p *Plugin) mountedAt(dir string) (string, error) {
	if mounted, err := p.cfg.Mounter.IsMountPoint(dir); err == nil && !mounted || errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err == nil && isTmpfs(dir) {
		return tmpfs, nil
	}
	all, err := p.cfg.Mounter.List()
	if err != nil {
		return "", fmt.Errorf("read the mount table: %w", err)
	}
	kind := ""
	for _, point := range all {
		if point.Path == dir {
			kind = point.Type
		}
	}
	return kind, nil
}

// isTmpfs tells whether a folder is in a tmpfs; of one that something is mounted at, whether that is one.
func isTmpfs(dir string) bool {
	var in unix.Statfs_t
	return unix.Statfs(dir, &in) == nil && in.Type == unix.TMPFS_MAGIC
}

// makeMountPoints makes folders in a volume for others to be mounted at. What is there of such a name stays: that can be mounted at, too.
func makeMountPoints(dir string, names []string) (err error) {
	if len(names) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, name := range names {
		if _, err := root.Stat(name); err == nil {
			continue
		}
		if err := root.MkdirAll(name, mountPointMode); err != nil {
			return fmt.Errorf("make the folder %q in the volume, which another volume is mounted at: %w", name, err)
		}
	}
	return nil
}
