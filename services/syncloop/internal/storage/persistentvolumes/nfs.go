package persistentvolumes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/mount-utils"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// nfsType is the type of the file system.
const nfsType = "nfs"

// serverOf begins what an operation waits for; the export follows, as "192.0.2.1:/data".
const serverOf = "NFS server of "

// nfsUnmountTimeout is how long an unmount may take until it is forced, as in the kubelet: the server may be away.
const nfsUnmountTimeout = time.Minute

// NFSMounter mounts NFS by the programs of the node; [mount.Mounter] implements it.
type NFSMounter interface {
	// MountSensitiveWithoutSystemd mounts a file system on an existing directory.
	MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitiveOptions []string) error
	// UnmountWithForce unmounts, by force if that takes longer than the timeout.
	UnmountWithForce(target string, timeout time.Duration) error
	// List returns all mounts.
	List() ([]mount.MountPoint, error)
}

// NFS is the [Kind] for exports of NFS servers: persistent volumes, and volumes of a pod's spec. As in the kubelet,
// fsGroup has no effect, because the server owns the files.
type NFS struct {
	// Mounter mounts and unmounts. Required.
	Mounter NFSMounter
	// Helper is the program that mount(8) needs; empty for mount.nfs of the usual directories.
	Helper string
}

// NewNFS returns the kind that mounts by the programs of the node.
func NewNFS() *NFS { return &NFS{Mounter: nfsMounter{}} }

// Name implements Kind.
func (*NFS) Name() string { return "kubernetes.io~nfs" }

// Supports implements Kind.
func (*NFS) Supports(pv *v1.PersistentVolume) bool { return pv.Spec.NFS != nil }

// Inline implements Kind.
func (*NFS) Inline(v *v1.Volume) bool { return v.NFS != nil }

// Mount implements Kind.
func (n *NFS) Mount(ctx context.Context, r Request) (string, error) {
	if r.Block {
		return "", errors.New("an NFS volume cannot have volumeMode Block")
	}
	exports, err := mountsAt(n.Mounter, r.Dir)
	if err != nil || len(exports) > 0 {
		return r.Dir, err
	}
	if err := n.checkPrograms(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(r.Dir, folderMode); err != nil {
		return "", err
	}
	source, options := exportOf(r)
	defer volumes.Asking(ctx, serverOf+source)()
	if err := n.Mounter.MountSensitiveWithoutSystemd(source, r.Dir, nfsType, options, nil); err != nil {
		return "", errors.Join(err, n.clean(ctx, r.Dir))
	}
	return r.Dir, nil
}

// exportOf returns the export of a volume in the form of mount(8), and the options of its mount.
func exportOf(r Request) (source string, options []string) {
	export, readOnly := r.Volume.NFS, r.ReadOnly
	if r.PV != nil {
		export, options = r.PV.Spec.NFS, slices.Clone(r.PV.Spec.MountOptions)
	} else {
		readOnly = export.ReadOnly
	}
	if readOnly {
		options = append(options, "ro")
	}
	slices.Sort(options)
	server := export.Server
	if ip := net.ParseIP(server); ip != nil && ip.To4() == nil {
		server = "[" + server + "]"
	}
	return server + ":" + export.Path, slices.Compact(options)
}

// checkPrograms checks that the node has the programs that mount NFS. The message of mount(8) does not name them.
func (n *NFS) checkPrograms() error {
	if n.Helper != "" {
		return helperError(n.Helper, func() error { _, err := os.Stat(n.Helper); return err }())
	}
	// mount(8) looks for its helpers there, whatever PATH is.
	for _, dir := range []string{"/sbin", "/usr/sbin", "/usr/local/sbin"} {
		if _, err := os.Stat(filepath.Join(dir, "mount.nfs")); err == nil {
			return nil
		}
	}
	_, err := exec.LookPath("mount.nfs")
	return helperError("mount.nfs", err)
}

// helperError returns the error of a missing program.
func helperError(program string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the node has no %s, which mounts NFS: install the package nfs-common (Debian, Ubuntu), nfs-utils (Fedora, RHEL, Alpine) or nfs-client (openSUSE)", program)
}

// Unmount implements Kind. It does not access the volume, whose server may be away.
func (n *NFS) Unmount(ctx context.Context, dir string) error {
	if err := n.clean(ctx, dir); err != nil {
		return err
	}
	return removeEmpty(dir)
}

// clean unmounts everything at a directory.
func (n *NFS) clean(ctx context.Context, dir string) error {
	exports, err := mountsAt(n.Mounter, dir)
	if err != nil {
		return err
	}
	for _, export := range exports {
		if err := n.unmount(ctx, dir, export); err != nil {
			return err
		}
	}
	// The directory may have been unmounted meanwhile, and must not be removed while it is not.
	if exports, err = mountsAt(n.Mounter, dir); err != nil {
		return err
	}
	if len(exports) > 0 {
		return fmt.Errorf("%s is still mounted", dir)
	}
	return nil
}

// unmount unmounts an export at a directory once.
func (n *NFS) unmount(ctx context.Context, dir, export string) error {
	defer volumes.Asking(ctx, serverOf+export)()
	return n.Mounter.UnmountWithForce(dir, nfsUnmountTimeout)
}
