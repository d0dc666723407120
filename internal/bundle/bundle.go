// Package bundle runs the node's own container runtime: containerd, runc and the CNI plugins from the build. Every
// file, socket and network name is derived from the node's state directory, so it is isolated from a runtime of the
// machine and from other nodes on the machine. `quartet up`, `quartet down` and the tests that need a real runtime use
// it; a node that uses an existing runtime does not.
//
// The runtime outlives the process that started it: containerd has its own session, and its shims are orphans, so the
// end of a command does not affect pods.
package bundle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/sharedmount"
)

const (
	// PauseImage is the image of every sandbox. The build creates it.
	PauseImage = "quartet.local/pause:1"
	// HelloImage is the image of the examples and the end-to-end tests. The build creates it.
	HelloImage = "quartet.local/hello:1"

	// dirMode lets only root read the state, because it may hold secrets of pods.
	dirMode = 0o700
	// passBits let other users traverse a directory. The root user of a pod's user namespace, who is unprivileged outside
	// of it, reaches its root file system through the state directory.
	passBits = 0o011
	// socketDirMode lets other users reach a socket. The services authorize them by the user ID of the peer.
	socketDirMode = 0o711
	// fileMode is the mode of the configuration files. They hold no secrets, but only root may change them.
	fileMode = 0o600
)

// Config holds the parameters of a Bundle.
type Config struct {
	// Layout has the paths of the node.
	Layout layout.Layout
	// BinDir holds the runtime's binaries from `make build`, and the image archives in images/.
	BinDir string
	// PodNetwork is the network of pod addresses; the zero prefix selects a free one.
	PodNetwork netip.Prefix
	// Logger logs for the operator.
	Logger *slog.Logger
	// Note receives a sentence for each fallback that was taken, for the operator's terminal; nil discards them.
	Note func(string)
}

// Bundle is the container runtime of one node. Create it with New.
type Bundle struct {
	cfg Config
}

// New returns a Bundle. It starts and writes nothing.
func New(cfg Config) *Bundle {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Note == nil {
		cfg.Note = func(string) {}
	}
	return &Bundle{cfg: cfg}
}

// binaries returns the names of the runtime's binaries.
func binaries() []string {
	return []string{
		"containerd", "containerd-shim-runc-v2", "ctr", "runc",
		"bridge", "host-local", "loopback", "portmap",
	}
}

func (b *Bundle) dir(name string) string    { return filepath.Join(b.cfg.Layout.Runtime(), name) }
func (b *Bundle) binDir() string            { return b.dir("bin") }
func (b *Bundle) configFile() string        { return b.dir("config.toml") }
func (b *Bundle) networkDir() string        { return b.dir("cni") }
func (b *Bundle) binary(name string) string { return filepath.Join(b.binDir(), name) }
func (b *Bundle) logFile() string           { return filepath.Join(b.cfg.Layout.Logs(), "containerd.log") }
func (b *Bundle) archive(image string) string {
	return filepath.Join(b.cfg.BinDir, "images", image+".tar")
}
func (b *Bundle) pidFile() string { return b.cfg.Layout.PIDFile("containerd") }
func (b *Bundle) ipamDir() string { return b.dir("ipam") }
func (b *Bundle) networkConfigFile() string {
	return filepath.Join(b.networkDir(), "10-quartet.conflist")
}

// LogFile returns the path of containerd's log.
func (b *Bundle) LogFile() string { return b.logFile() }

// Prepare creates the directories, mounts, binaries and configuration. It is idempotent, and may be called while the
// runtime runs; it changes only what is out of date. It fails if the machine lacks something without a fallback; the
// error names the remedy.
func (b *Bundle) Prepare() error {
	if err := Preflight(b.cfg.BinDir).Err(); err != nil {
		return err
	}
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{
		// The state directory comes first, because the others create their parents with their own mode.
		{b.cfg.Layout.StateDir(), dirMode},
		{b.cfg.Layout.SocketDir(), socketDirMode},
		{b.cfg.Layout.ShimSocketDir(), dirMode},
		{b.cfg.Layout.PIDDir(), dirMode},
		{b.cfg.Layout.Logs(), dirMode},
		{b.binDir(), dirMode},
		{b.networkDir(), dirMode},
		{b.ipamDir(), dirMode},
	} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return fmt.Errorf("making the directories of the node: %w", err)
		}
	}
	for _, dir := range []string{b.cfg.Layout.StateDir(), b.dir("")} { // earlier versions used other modes for both
		if err := letPass(dir); err != nil {
			return fmt.Errorf("making the directories of the node: %w", err)
		}
	}
	if err := makeShared(b.cfg.Layout.StateDir(), b.cfg.Note); err != nil {
		return err
	}
	for _, name := range binaries() {
		if err := install(filepath.Join(b.cfg.BinDir, name), b.binary(name)); err != nil {
			return fmt.Errorf("installing %s into the state directory: %w", name, err)
		}
	}
	network, err := b.network()
	if err != nil {
		return err
	}
	return b.configure(network)
}

// CleanUp reverts the changes of Prepare to the machine: mounts, bridge and sockets. It also removes the cgroups of the
// pods. The runtime must have stopped. The files in the state directory stay, so that the next start finds its images.
func (b *Bundle) CleanUp() error {
	return errors.Join(
		b.unmount(),
		UnshareMounts(b.cfg.Layout),
		b.removeNetwork(),
		b.removeSockets(),
		RemoveCgroups(b.cfg.Layout.CgroupRoot()),
	)
}

// unmount removes the mounts of the node, and that of the state directory which makes it shared. The disks of an
// administrator stay.
func (b *Bundle) unmount() error {
	l := b.cfg.Layout
	return errors.Join(unmountBelow(l, l.StateDir()), sharedmount.Undo(l.StateDir()))
}

// CleanUpRuntime reverts only the runtime's changes to the machine. It keeps the mount of the state directory and the
// sockets of running services. The runtime must have stopped.
func (b *Bundle) CleanUpRuntime() error {
	return errors.Join(
		unmountBelow(b.cfg.Layout, b.cfg.Layout.Runtime()),
		b.removeNetwork(),
		b.removeAll(b.runtimeSockets()),
	)
}

// removeSockets removes every socket of the node, including those of killed processes, and their directory unless other
// nodes use it.
func (b *Bundle) removeSockets() error {
	l := b.cfg.Layout
	paths := b.runtimeSockets()
	for _, service := range layout.Services() {
		for _, socket := range []string{l.Socket(service), l.MetricsSocket(service)} {
			paths = append(paths, socket, layout.EarlierSocket(socket))
		}
		paths = append(paths, l.ServiceDir(service))
	}
	if l.SocketDir() != layout.DefaultRunDir && l.SocketDir() != l.PIDDir() {
		paths = append(paths, l.SocketDir())
	}
	return b.removeAll(paths)
}

// runtimeSockets returns the sockets of containerd and its shims, and containerd's PID file.
func (b *Bundle) runtimeSockets() []string {
	l := b.cfg.Layout
	paths := []string{l.RuntimeSocket(), l.RuntimeSocket() + ".ttrpc", b.pidFile()}
	entries, err := os.ReadDir(l.ShimSocketDir())
	if err != nil {
		return paths
	}
	for _, e := range entries {
		paths = append(paths, filepath.Join(l.ShimSocketDir(), e.Name()))
	}
	return append(paths, l.ShimSocketDir())
}

// removeAll removes files and empty directories. Those on a read-only disk stay: the processes that they belong to have
// ended, and the next start replaces them.
func (b *Bundle) removeAll(paths []string) error {
	var errs []error
	for _, path := range paths {
		switch err := os.Remove(path); {
		case err == nil, errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENOTEMPTY): // something else is in it
		case errors.Is(err, syscall.EROFS):
			if _, missing := os.Lstat(path); missing == nil {
				b.cfg.Note(path + " stays, because it is on a read-only disk")
			}
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// letPass adds passBits to a directory's mode.
func letPass(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode()&passBits == passBits {
		return err
	}
	return os.Chmod(dir, info.Mode()|passBits)
}

// install installs a binary by a hard link, or by a copy across file systems, which has the time of the original. It
// keeps a file that is up to date, so that a running process shares its pages with the next one; otherwise a running
// process keeps the old file.
func install(from, to string) error {
	source, err := os.Stat(from)
	if err != nil {
		return err
	}
	if have, err := os.Stat(to); err == nil && (os.SameFile(source, have) ||
		source.Size() == have.Size() && source.ModTime().Equal(have.ModTime())) {
		return nil
	}
	tmp := to + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Link(from, tmp); err != nil {
		// The mode allows all users, as in the build, because containerd runs itself as the root user of a pod's user
		// namespace, who is unprivileged outside of it.
		if err := CopyFile(from, tmp, 0o755); err != nil {
			return err
		}
		if err := os.Chtimes(tmp, time.Time{}, source.ModTime()); err != nil {
			return err
		}
	}
	return os.Rename(tmp, to)
}

// CopyFile copies a file without having it in memory. The copy has a mode, unless there is a file in its place already,
// which it overwrites.
func CopyFile(from, to string, mode fs.FileMode) (err error) {
	in, err := os.Open(filepath.Clean(from))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.OpenFile(filepath.Clean(to), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
