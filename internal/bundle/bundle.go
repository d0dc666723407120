// Package bundle runs a container runtime of the node's own: containerd, runc and the CNI plugins that the build made,
// with every file, socket and network name derived from the node's state directory. It touches nothing of a runtime that
// the machine already has, and two nodes on one machine do not meet. `quartet up`, `quartet down` and the tests that need
// a real runtime use it; a node that brings its own runtime does not.
//
// The runtime outlives whoever started it: containerd is a session of its own and its shims are its orphans, so a pod
// never notices that a command has ended.
package bundle

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/quartet-node/quartet/internal/layout"
)

const (
	// PauseImage is the image of every sandbox; the build makes it.
	PauseImage = "quartet.local/pause:1"
	// HelloImage is the image of the examples and the end-to-end tests; the build makes it.
	HelloImage = "quartet.local/hello:1"

	// dirMode lets only root read the state: it may hold secrets of pods.
	dirMode = 0o700
	// passBits let others pass through a directory to what they may use. The root of a pod's user namespace, who is nobody
	// outside, gets to his root file system through the state directory.
	passBits = 0o011
	// socketDirMode lets others pass to a socket that they may use; the services decide by the peer's user.
	socketDirMode = 0o711
	// fileMode is that of the configuration files, which hold no secrets but are nobody's to change.
	fileMode = 0o600
)

// Config says which runtime, where.
type Config struct {
	// Layout has the paths of the node.
	Layout layout.Layout
	// BinDir has the runtime's binaries as `make build` leaves them, and images/ with the image archives.
	BinDir string
	// PodNetwork is where pods get their addresses; the zero prefix lets the runtime choose a free one.
	PodNetwork netip.Prefix
	// Logger gets what an operator wants to know later.
	Logger *slog.Logger
	// Note gets a sentence for each fallback that was taken, for the operator who watches; nil to drop them.
	Note func(string)
}

// Bundle is one node's own runtime. Make it with New.
type Bundle struct {
	cfg Config
}

// New describes a runtime; nothing is started or written.
func New(cfg Config) *Bundle {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Note == nil {
		cfg.Note = func(string) {}
	}
	return &Bundle{cfg: cfg}
}

// binaries is what the runtime consists of.
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

// LogFile is where containerd's log goes.
func (b *Bundle) LogFile() string { return b.logFile() }

// Prepare makes the directories, mounts, binaries and configuration. It may be called again, also while the runtime
// runs; it then changes only what is out of date. It fails when the machine lacks something that has no fallback, and
// the error says what to do.
func (b *Bundle) Prepare() error {
	if err := Preflight(b.cfg.BinDir).Err(); err != nil {
		return err
	}
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{
		// The state directory comes first, for the others make their parents with their own mode.
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
	for _, dir := range []string{b.cfg.Layout.StateDir(), b.dir("")} { // both had other modes in earlier versions
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

// CleanUp undoes what Prepare did to the machine, mounts, bridge and sockets, and removes the cgroups of the pods. The runtime
// must have been stopped. The files in the state directory stay, so that the next start finds its images.
func (b *Bundle) CleanUp() error {
	return errors.Join(
		unmountBelow(b.cfg.Layout.StateDir()),
		UnshareMounts(b.cfg.Layout),
		b.removeNetwork(),
		b.removeSockets(),
		RemoveCgroups(b.cfg.Layout.CgroupRoot()),
	)
}

// CleanUpRuntime undoes what the runtime alone did to the machine, and leaves services that run their sockets and the mount
// of the state directory. The runtime must have been stopped.
func (b *Bundle) CleanUpRuntime() error {
	return errors.Join(
		unmountBelow(b.cfg.Layout.Runtime()),
		b.removeNetwork(),
		removeAll(b.runtimeSockets()),
	)
}

// removeSockets removes every socket of the node, also those that a killed process has left, and their directory unless
// other nodes use it too.
func (b *Bundle) removeSockets() error {
	l := b.cfg.Layout
	paths := b.runtimeSockets()
	for _, service := range layout.Services() {
		paths = append(paths, l.Socket(service), l.MetricsSocket(service))
	}
	if l.SocketDir() != layout.DefaultRunDir && l.SocketDir() != l.PIDDir() {
		paths = append(paths, l.SocketDir())
	}
	return removeAll(paths)
}

// runtimeSockets are containerd's and its shims', and the file with containerd's process id.
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

func removeAll(paths []string) error {
	var errs []error
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
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

// install puts a binary in place by a hard link, or by a copy across file systems. What is there and the same file stays;
// a running process keeps the old file.
func install(from, to string) error {
	source, err := os.Stat(from)
	if err != nil {
		return err
	}
	if have, err := os.Stat(to); err == nil && os.SameFile(source, have) {
		return nil
	}
	tmp := to + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Link(from, tmp); err != nil {
		if err := copyFile(from, tmp); err != nil {
			return err
		}
	}
	return os.Rename(tmp, to)
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	// For all, as the build leaves it: containerd runs itself as the root of a pod's user namespace, which is nobody outside.
	return os.WriteFile(to, content, 0o755) //nolint:gosec // an executable
}
