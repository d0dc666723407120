// Package layout says where everything of one node lies: one state directory, and the sockets that may have to lie
// elsewhere because the kernel bounds the length of a socket's path. It only computes paths and touches no disk, so the
// command that starts a node, the commands that ask one, and the tests agree without talking.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
)

const (
	// DefaultStateDir is the state directory when none is named.
	DefaultStateDir = "/var/lib/quartet"
	// DefaultRunDir has the sockets of the default state directory; the services' own defaults name it too.
	DefaultRunDir = "/run/quartet"

	// maxSocketPath is the longest path of a unix socket: sun_path of sockaddr_un(7) is 108 bytes with its final zero.
	maxSocketPath = 107
	// longestSocketName is the longest name below a run directory: "/s/" and the 64 hex digits of a shim's socket.
	longestSocketName = len("/s/") + 2*sha256.Size
)

// Service names one of the four processes.
type Service string

// The four processes, in the order in which a change passes through them.
const (
	ConfigMux  Service = "configmux"
	PLEG       Service = "pleg"
	SyncLoop   Service = "syncloop"
	NodeStatus Service = "nodestatus"
)

// Services lists the four processes.
func Services() []Service {
	return []Service{ConfigMux, PLEG, SyncLoop, NodeStatus}
}

// Layout has the paths of one node. Make it with New.
type Layout struct {
	stateDir string
}

// New lays out a node in a state directory, which need not exist. A relative path is taken from the working directory;
// empty means DefaultStateDir. It fails only when the working directory cannot be told.
func New(stateDir string) (Layout, error) {
	if stateDir == "" {
		stateDir = DefaultStateDir
	}
	abs, err := filepath.Abs(stateDir)
	if err != nil {
		return Layout{}, fmt.Errorf("making the state directory %q absolute: %w", stateDir, err)
	}
	return Layout{stateDir: abs}, nil
}

// StateDir is the state directory, absolute.
func (l Layout) StateDir() string { return l.stateDir }

// IsDefault is true for the node of the default state directory.
func (l Layout) IsDefault() bool { return l.stateDir == DefaultStateDir }

// ID is a short name for the state directory that differs between any two of them: twelve hex digits.
func (l Layout) ID() string {
	sum := sha256.Sum256([]byte(l.stateDir))
	return hex.EncodeToString(sum[:6])
}

// SocketDir has the sockets. It is in the state directory, except for the default one (/run/quartet) and for a path
// so long that a socket's name would not fit (/run/quartet/ID).
func (l Layout) SocketDir() string {
	dir := filepath.Join(l.stateDir, "run")
	switch {
	case l.IsDefault():
		return DefaultRunDir
	case len(dir)+longestSocketName > maxSocketPath:
		return filepath.Join(DefaultRunDir, l.ID())
	default:
		return dir
	}
}

// Socket is the path of a service's socket.
func (l Layout) Socket(s Service) string {
	return filepath.Join(l.SocketDir(), string(s)+".sock")
}

// MetricsSocket is the path of the socket on which a service serves its metrics, unless --metrics-listen says otherwise.
func (l Layout) MetricsSocket(s Service) string {
	return filepath.Join(l.SocketDir(), string(s)+"-metrics.sock")
}

// Address is what a client dials to reach a service.
func (l Layout) Address(s Service) string { return "unix://" + l.Socket(s) }

// RuntimeSocket is the path of the bundled containerd's socket.
func (l Layout) RuntimeSocket() string { return filepath.Join(l.SocketDir(), "containerd.sock") }

// RuntimeEndpoint is the CRI endpoint of the bundled containerd.
func (l Layout) RuntimeEndpoint() string { return "unix://" + l.RuntimeSocket() }

// ShimSocketDir has the sockets of the bundled containerd's shims.
func (l Layout) ShimSocketDir() string { return filepath.Join(l.SocketDir(), "s") }

// PIDDir has a file NAME.pid for each process of the node.
func (l Layout) PIDDir() string { return filepath.Join(l.stateDir, "run") }

// PIDFile is the file with the process id of a service, of "quartet" (the command that supervises the four) or of
// "containerd".
func (l Layout) PIDFile(name string) string { return filepath.Join(l.PIDDir(), name+".pid") }

// Logs has the logs of the node's own processes.
func (l Layout) Logs() string { return filepath.Join(l.stateDir, "logs") }

// NodeLog is the output of the node that runs in the background.
func (l Layout) NodeLog() string { return filepath.Join(l.Logs(), "node.log") }

// PodLogs has the logs of the containers.
func (l Layout) PodLogs() string { return filepath.Join(l.stateDir, "logs", "pods") }

// Manifests is the directory that static pods are read from, unless the operator names another.
func (l Layout) Manifests() string { return filepath.Join(l.stateDir, "manifests") }

// Root has the pods' volumes and files, as the kubelet's root directory has.
func (l Layout) Root() string { return filepath.Join(l.stateDir, "root") }

// CgroupRoot is the cgroup that the cgroups of the pods are made in: of its own, so that two nodes of a machine, or a node and a
// kubelet, do not limit and remove each other's.
func (l Layout) CgroupRoot() string { return filepath.Join("/quartet", l.stateDir) }

// ConfigFile is the KubeletConfiguration that `quartet up` writes.
func (l Layout) ConfigFile() string { return filepath.Join(l.stateDir, "kubelet.yaml") }

// Runtime has all of the bundled runtime's files: binaries, configuration, images, snapshots.
func (l Layout) Runtime() string { return filepath.Join(l.stateDir, "runtime") }

// RuntimeDist has the bundled runtime's programs and images when they came in an image, not from a build.
func (l Layout) RuntimeDist() string { return filepath.Join(l.Runtime(), "dist") }
