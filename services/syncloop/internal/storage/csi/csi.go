// Package csi mounts the volumes of CSI drivers: persistent volumes, which a driver stages once on the node and
// publishes for each pod, and inline volumes, which it only publishes. The calls, the paths and the files are the
// kubelet's, so that a node can change from one to the other.
//
//	attached to the node ──► NodeStageVolume ──► NodePublishVolume ──► owners ──► containers
//	containers are gone ──► NodeUnpublishVolume ──► no pod has it any more ──► NodeUnstageVolume
//
// What a driver has been asked to do is on disk before it is asked: a record for each staged volume and for each volume
// of a pod (see record). decide.go decides from these records and from what is mounted, so that a process that is
// killed anywhere leaves nothing that the next one does not know: nothing is staged or published twice, and nothing is
// unstaged that a pod of the node uses. A call that fails without a certain end is followed by its opposite when the
// pod goes.
//
// A staged volume without pods is unstaged by Run, because a pod ends when its volumes are unpublished.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/mount-utils"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/dirlock"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
)

// Cluster returns the objects that the volumes of pods need.
type Cluster interface {
	// Driver returns the CSIDriver of a driver; nil without an error if there is none.
	Driver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	// Attachment returns the publish context of a volume that is attached to this node. It fails until it is attached.
	// What it returns may be old.
	Attachment(ctx context.Context, driver, handle string) (map[string]string, error)
	// AttachmentNow returns what the API server has at this moment.
	AttachmentNow(ctx context.Context, driver, handle string) (map[string]string, error)
	// Secret returns a secret. Its errors contain nothing of the secret.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// Refused records that a volume of a pod could not be mounted or expanded with a secret: the pod is to try again when
	// the secret has changed. Accepted records that it does not wait for that any more.
	Refused(pod types.UID, secret *v1.Secret)
	Accepted(pod types.UID, namespace, name string)
}

// Tokens returns tokens of the service accounts of pods.
type Tokens interface {
	// Token returns a token that is bound to the pod, for an audience, the API server's if it is empty, with about the
	// given lifetime when it is new.
	Token(ctx context.Context, pod *v1.Pod, audience string, expirationSeconds int64) (string, error)
}

// Mounts reads the mount table; volumes.Machine on a node.
type Mounts interface {
	// IsMountPoint reports whether an existing path is a mount point.
	IsMountPoint(path string) (bool, error)
	// List returns all mounts.
	List() ([]mount.MountPoint, error)
	// Refs returns where else the same directory of the same file system is mounted as at a path, which may be missing.
	Refs(path string) ([]string, error)
}

// Config holds the parameters of a Plugin.
type Config struct {
	// Root is the root directory of pods and plugins, as drivers know it. Required.
	Root string
	// Boot identifies the present boot of the machine. Required.
	Boot string
	// NodeName is the name of the node. Required.
	NodeName string
	// Drivers, Cluster, Claims and Tokens are required.
	Drivers Drivers
	Cluster Cluster
	Claims  Claims
	Tokens  Tokens
	// Events receives expansions; nil discards them.
	Events Events
	// Attached fails until the Node's status shows that a volume, by its unique name, is in use by the node and attached
	// to it. Nil does not ask. A volume that is in place already is not asked for.
	Attached func(ctx context.Context, name string) error
	// InUseChanged is called when the result of VolumesInUse may have changed. It must not block. It may be nil.
	InUseChanged func()
	// Freed is called for each pod that may get a volume now, because it is unpublished for another pod or unstaged. It
	// must not block. It may be nil.
	Freed func(pod types.UID)
	// Measured receives operations on volumes that are not those of one pod, by the kubelet's names of plugin and
	// operation. It may be nil.
	Measured func(plugin, operation string, migrated bool, took time.Duration, err error)
	// Mounts reads the mount table. Required.
	Mounts Mounts
	// SELinux is that of the machine; nil for none.
	SELinux selinux.Host
	// Clock is the clock of retries. Required.
	Clock clock.Clock
	// Tracer creates a span for each call; it may be nil.
	Tracer trace.Tracer
	// Logger logs failures; slog.Default if nil.
	Logger *slog.Logger
	// Timeout is the deadline of a call; two minutes if zero.
	Timeout time.Duration
}

// Plugin is the persistentvolumes.Kind for CSI. Create it with New.
type Plugin struct {
	cfg   Config
	books *books
	// staging has the locks of staged volumes.
	staging dirlock.Locks
	// wake has capacity one, because a wake-up covers everything.
	wake  chan struct{}
	sizes sizes
	// unstaging has the volumes without pods.
	unstaging unstaging
	// reread is when Run next tries to read records that are not known; zero before the first time.
	reread time.Time
}

// readPeriod is the time between two attempts to read records that could not be listed or read.
const readPeriod = 10 * time.Second

// New returns a plugin that knows the volumes of an earlier process, also of a kubelet.
func New(cfg Config) (*Plugin, error) {
	if cfg.Tracer == nil {
		cfg.Tracer = telemetry.Off()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = callTimeout
	}
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	if cfg.Measured == nil {
		cfg.Measured = func(string, string, bool, time.Duration, error) {}
	}
	if cfg.Freed == nil {
		cfg.Freed = func(types.UID) {}
	}
	if cfg.InUseChanged == nil {
		cfg.InUseChanged = func() {}
	}
	if err := os.MkdirAll(cfg.Root, folderMode); err != nil {
		return nil, err
	}
	root, err := filepath.EvalSymlinks(cfg.Root) // the requests and the mount table have resolved paths
	if err != nil {
		return nil, err
	}
	p := &Plugin{cfg: cfg, wake: make(chan struct{}, 1), sizes: sizes{of: map[identity]size{}}}
	p.unstaging.attempts = map[identity]*attempt{}
	p.books = open(layout{root}, p.changed)
	p.settleRead(p.books.unread)
	p.signal()
	return p, nil
}

// settleRead does what has to wait until the records are known, or says that they are not.
func (p *Plugin) settleRead(err error) {
	if err != nil {
		p.cfg.Logger.Error("CSI volumes are neither mounted nor unmounted until their records can be listed; retrying",
			telemetry.KeyError, err)
		return
	}
	for file, broken := range p.books.allBroken() {
		p.cfg.Logger.Warn("the record of a CSI volume cannot be read, so the volume may be in use; reading it again. "+
			"If it is damaged and no pod has the volume, ask the driver to unpublish or unstage it, and remove the file",
			telemetry.KeyFile, file, telemetry.KeyError, broken.err)
	}
	p.sweep()
}

// readAgain reads records that were not known, if it is time, and returns the time of the next attempt; zero if they
// are known. Only Run calls it.
func (p *Plugin) readAgain() (again time.Time) {
	unread := p.books.isRead() != nil
	if !unread && len(p.books.allBroken()) == 0 {
		return time.Time{}
	}
	if now := p.cfg.Clock.Now(); p.reread.IsZero() || now.Before(p.reread) {
		if p.reread.IsZero() {
			p.reread = now.Add(readPeriod)
		}
		return p.reread
	}
	p.reread = p.cfg.Clock.Now().Add(readPeriod)
	switch {
	case !unread:
		if p.books.readBroken() {
			p.unstaging.hurry(func(identity) bool { return true })
			p.changed()
		}
	case p.books.reload() == nil:
		p.cfg.Logger.Info("the records of CSI volumes are known now")
		p.settleRead(nil)
		p.changed()
	}
	if p.books.isRead() == nil && len(p.books.allBroken()) == 0 {
		return time.Time{}
	}
	return p.reread
}

// Unread returns why the records of CSI volumes are not known; nil if they are.
func (p *Plugin) Unread() error { return p.books.isRead() }

// sweep removes directories for staged volumes that have no record and nothing mounted: a process was killed before it
// wrote the record, or after it had removed it.
func (p *Plugin) sweep() {
	for _, dir := range p.books.empty {
		staging, file := filepath.Join(dir, stagingName), filepath.Join(dir, dataFile)
		mounted, err := p.mounted(staging)
		if err == nil && mounted {
			err = errors.New("it has no record of the driver and the volume; ask the driver to unstage it, or unmount it")
		}
		if err == nil {
			err = errors.Join(remove(staging), drop(file), remove(dir))
		}
		if err != nil {
			p.cfg.Logger.Warn("a staged CSI volume of an earlier process cannot be removed", telemetry.KeyFile, staging, telemetry.KeyError, err)
		}
	}
	for _, name := range p.books.emptyDevices {
		v := identity{block: true, name: name}
		if err := errors.Join(drop(p.books.stagedFile(v)), p.forgetDevice(v)); err != nil {
			p.cfg.Logger.Warn("what an earlier process has left of a block device cannot be removed",
				telemetry.KeyVolume, name, telemetry.KeyError, err)
		}
	}
}

// changed is called when a volume is in use or no longer.
func (p *Plugin) changed() {
	p.cfg.InUseChanged()
	p.signal()
}

// signal wakes Run.
func (p *Plugin) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// VolumesInUse returns the unique names of the attached volumes that the node uses or is about to use, sorted. Such a
// volume must not be detached from the node. They are not known while the records on disk cannot be listed.
func (p *Plugin) VolumesInUse() (names []v1.UniqueVolumeName, known bool) {
	return p.books.inUse(), p.books.isRead() == nil
}

// Name implements persistentvolumes.Kind.
func (p *Plugin) Name() string { return kindName }

// Supports implements persistentvolumes.Kind.
func (p *Plugin) Supports(pv *v1.PersistentVolume) bool { return pv.Spec.CSI != nil }

// Inline implements persistentvolumes.Kind.
func (p *Plugin) Inline(v *v1.Volume) bool { return v.CSI != nil }

// driverPath returns a path as drivers know it: below the configured root, which may be a symbolic link.
func (p *Plugin) driverPath(path string) string {
	if below, ok := strings.CutPrefix(path, p.books.root+string(filepath.Separator)); ok {
		return filepath.Join(p.cfg.Root, below)
	}
	return path
}

// notLink fails if a path at which the driver is going to mount something is a symbolic link. It may be missing. A
// mount is none, and is not looked into, because its server may be away.
func (p *Plugin) notLink(path string) error {
	if mounted, err := p.mounted(path); err != nil || mounted {
		return err
	}
	if _, err := os.Readlink(path); err == nil {
		return fmt.Errorf("%s is a symbolic link, and nothing is mounted through it: remove it", path)
	}
	return nil
}

// mounted reports whether something is mounted at a path. A dead mount can only be seen in the mount table.
func (p *Plugin) mounted(path string) (bool, error) {
	is, err := p.cfg.Mounts.IsMountPoint(path)
	if err == nil || os.IsNotExist(err) {
		return is, nil
	}
	points, err := p.cfg.Mounts.List()
	if err != nil {
		return false, fmt.Errorf("read the mount table: %w", err)
	}
	for _, point := range points {
		if point.Path == path {
			return true, nil
		}
	}
	return false, nil
}
