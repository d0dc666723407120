// Package volumeprojected sets up the volumes with files from elsewhere: configMap, secret, downwardAPI and projected
// ones, each a plugin of package volumes. Package volumecontent computes the files; package atomicdir writes them. All
// except configMap volumes are in memory, and secrets are never on disk.
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

// mountPointMode is the mode of a mount point in a volume.
const mountPointMode = 0o755

// Objects returns the present config maps and secrets. It fails with an error that apierrors.IsNotFound recognizes for
// a missing one, and its errors contain nothing of a secret.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens returns tokens of the service accounts of pods.
type Tokens interface {
	// Token returns a token that is bound to the pod, for an audience, the API server's if it is empty, with about the
	// given lifetime when it is new. It returns the same token until that is due for replacement.
	Token(ctx context.Context, pod *v1.Pod, audience string, expirationSeconds int64) (string, error)
}

// TrustBundles returns the trust bundles of a cluster.
type TrustBundles interface {
	// Get returns the roots that a source selects, in PEM, and fails with an error that apierrors.IsNotFound recognizes if
	// there are none.
	Get(ctx context.Context, pod *v1.Pod, p *v1.ClusterTrustBundleProjection) ([]byte, error)
}

// Certificates returns keys and certificates for pods.
type Certificates interface {
	// Get returns those of the source with an index in a volume, both in PEM, and fails while there are none.
	Get(ctx context.Context, pod *v1.Pod, volume string, source int, p *v1.PodCertificateProjection) (key, chain []byte,
		err error)
}

// Config holds the parameters of the plugins.
type Config struct {
	// Mounter mounts and unmounts. Required.
	Mounter volumes.Mounter
	// Memory returns the memory of the node for pods in bytes, 0 if unknown: the maximum size of a volume.
	Memory func(context.Context) int64
	// Swappable is called for each file system in memory that may be swapped; it may be nil.
	Swappable func()
	// Objects returns config maps and secrets. Required.
	Objects Objects
	// Tokens, TrustBundles and Certificates are required for volumes with such sources.
	Tokens       Tokens
	TrustBundles TrustBundles
	Certificates Certificates
	// Node returns the known Node: its allocatable resources are the defaults of missing limits. Required.
	Node func(context.Context) (*v1.Node, error)
	// Clock is the clock for the versions of files. Required.
	Clock clock.PassiveClock
}

// Plugin is one of the kinds. Create all of them with Plugins.
type Plugin struct {
	cfg      Config
	name     string
	supports func(*v1.Volume) bool
	medium   v1.StorageMedium
	// folder creates and removes the directory, or its mount.
	folder     *volumes.EmptyDir
	configMaps keeper[*v1.ConfigMap]
	secrets    keeper[*v1.Secret]
}

// Plugins are the plugins of the four kinds.
func Plugins(cfg Config) []volumes.Plugin {
	folder := &volumes.EmptyDir{
		Mounter: volumes.Unswapped{Mounter: cfg.Mounter, Swappable: cfg.Swappable}, Memory: cfg.Memory,
	}
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

// Refreshes implements volumes.Plugin, because objects, labels and tokens change.
func (p *Plugin) Refreshes() bool { return true }

// SetUp implements volumes.Plugin. If an input to the files is not available, a volume that is set up stays unchanged.
// An immutable object is requested once.
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

// resolved returns a path as in the mount table, without links except in the last name.
func resolved(dir string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	return filepath.Join(parent, filepath.Base(dir)), err
}

// inputs returns the inputs to the files of a volume.
func (p *Plugin) inputs(ctx context.Context, r volumes.Request) volumecontent.Inputs {
	namespace := r.Pod.Namespace
	return volumecontent.Inputs{
		Pod: r.Pod,
		ConfigMap: func(name string) (*v1.ConfigMap, error) {
			defer volumes.Asking(ctx, "configmap "+namespace+"/"+name)()
			return p.configMaps.get(r.Dir, name, func() (*v1.ConfigMap, bool, error) {
				m, err := p.cfg.Objects.ConfigMap(ctx, namespace, name)
				return m, err == nil && m.Immutable != nil && *m.Immutable, err
			})
		},
		Secret: func(name string) (*v1.Secret, error) {
			defer volumes.Asking(ctx, "secret "+namespace+"/"+name)()
			return p.secrets.get(r.Dir, name, func() (*v1.Secret, bool, error) {
				s, err := p.cfg.Objects.Secret(ctx, namespace, name)
				return s, err == nil && s.Immutable != nil && *s.Immutable, err
			})
		},
		Token: func(audience string, expirationSeconds int64) (string, error) {
			defer volumes.Asking(ctx, volumes.IssuedToken)()
			return p.cfg.Tokens.Token(ctx, r.Pod, audience, expirationSeconds)
		},
		TrustBundle: func(s *v1.ClusterTrustBundleProjection) ([]byte, error) {
			defer volumes.Asking(ctx, "API server to answer about trust bundles")()
			return p.cfg.TrustBundles.Get(ctx, r.Pod, s)
		},
		Certificate: func(source int, s *v1.PodCertificateProjection) (key, chain []byte, err error) {
			defer volumes.Asking(ctx, "certificate of the signer "+s.SignerName)()
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

// place sets up the directory of a volume, in memory if required.
func (p *Plugin) place(ctx context.Context, r volumes.Request) error {
	if p.medium == v1.StorageMediumMemory {
		if kind, err := p.mountedAt(r.Dir); err != nil || kind == tmpfs {
			return err
		}
	}
	r.Volume = &v1.Volume{
		Name: r.Volume.Name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: p.medium}},
	}
	if err := p.folder.SetUp(ctx, r); err != nil || p.medium != v1.StorageMediumMemory {
		return err
	}
	switch kind, err := p.mountedAt(r.Dir); {
	case err != nil:
		return err
	case kind == "":
		return fmt.Errorf("nothing is mounted at %s: secrets are not written to disk", r.Dir)
	case kind != tmpfs:
		return fmt.Errorf("%s is mounted at %s, where a tmpfs is required for secrets; unmount it", kind, r.Dir)
	}
	return nil
}

// mountedAt returns the type of the last file system mounted at a directory; empty if there is none. It reads the whole
// mount table, so it is called only if the wrong file system is mounted.
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

// isTmpfs reports whether a directory is in a tmpfs; for a mount point, whether the mount is one.
func isTmpfs(dir string) bool {
	var in unix.Statfs_t
	return unix.Statfs(dir, &in) == nil && in.Type == unix.TMPFS_MAGIC
}

// makeMountPoints creates directories in a volume as mount points. Existing files of these names stay, because they can
// be mount points too.
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
