// Package layout computes the paths of one node: its state directory, and its sockets, which may have to be elsewhere
// because the kernel limits the length of a socket's path. It does no I/O, so that the command that starts a node, its
// clients and the tests compute the same paths independently.
package layout

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// DefaultStateDir is the default state directory.
	DefaultStateDir = "/var/lib/quartet"
	// DefaultRunDir is the socket directory of the default state directory. The services' own defaults use it too.
	DefaultRunDir = "/run/quartet"

	// maxSocketPath is the maximum length of a unix socket's path: sun_path of sockaddr_un(7) has 108 bytes including the
	// final zero.
	maxSocketPath = 107
	// socketSuffix ends the name of a service's socket, metricsSuffix that of its socket for metrics.
	socketSuffix  = ".sock"
	metricsSuffix = "-metrics" + socketSuffix
	// longestSocketName is the length of the longest name in a socket directory: "/s/" and the 64 hex digits of a shim's
	// socket.
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

// Layout computes the paths of one node. Create it with New.
type Layout struct {
	stateDir string
	// runtimeDir is the directory of the runtime's sockets; empty for the directory of all.
	runtimeDir string
}

// New returns the Layout of a state directory, which need not exist. A relative path is relative to the working
// directory; empty means DefaultStateDir. It fails only if the working directory is unknown.
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

// IsDefault reports whether the node uses the default state directory.
func (l Layout) IsDefault() bool { return l.stateDir == DefaultStateDir }

// ID returns a short unique name of the state directory: twelve hex digits.
func (l Layout) ID() string {
	sum := sha256.Sum256([]byte(l.stateDir))
	return hex.EncodeToString(sum[:6])
}

// SocketDir returns the directory with a directory of sockets for each service. It is in the state directory, except
// for the default one (/run/quartet) and for a path that is too long for a socket's name (/run/quartet/ID).
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

// ServiceDir is the directory of a service's own sockets, in which only the service's user may create names.
func (l Layout) ServiceDir(s Service) string { return filepath.Join(l.SocketDir(), string(s)) }

// Socket is the path of a service's socket.
func (l Layout) Socket(s Service) string { return SocketIn(l.SocketDir(), s) }

// MetricsSocket is the default path of the socket on which a service serves its metrics, see --metrics-listen.
func (l Layout) MetricsSocket(s Service) string { return MetricsSocketIn(l.SocketDir(), s) }

// SocketIn is the path of a service's socket below a directory of sockets.
func SocketIn(dir string, s Service) string {
	return filepath.Join(dir, string(s), string(s)+socketSuffix)
}

// MetricsSocketIn is the path of a service's socket for metrics below a directory of sockets.
func MetricsSocketIn(dir string, s Service) string {
	return filepath.Join(dir, string(s), string(s)+metricsSuffix)
}

// ServiceOf returns the service to which the name of a socket belongs: "pleg" for .../pleg.sock and
// .../pleg-metrics.sock. The result need not be one of the four.
func ServiceOf(socket string) Service {
	base := filepath.Base(socket)
	if name, ok := strings.CutSuffix(base, metricsSuffix); ok {
		return Service(name)
	}
	return Service(strings.TrimSuffix(base, socketSuffix))
}

// InServiceDir reports whether a socket is in the directory of its service, as those of Socket and MetricsSocket are.
func InServiceDir(socket string) bool {
	service := ServiceOf(socket)
	return slices.Contains(Services(), service) && filepath.Base(filepath.Dir(socket)) == string(service)
}

// SharedDir returns the directory that the sockets of all services have in common: SocketDir for one in the directory
// of its service, otherwise the directory of the socket.
func SharedDir(socket string) string {
	if InServiceDir(socket) {
		return filepath.Dir(filepath.Dir(socket))
	}
	return filepath.Dir(socket)
}

// EarlierSocket returns where v0.1.0 has the socket of a path: /run/quartet/pleg.sock for /run/quartet/pleg/pleg.sock.
// It is empty for a socket that is not in the directory of its service.
func EarlierSocket(socket string) string {
	if !InServiceDir(socket) {
		return ""
	}
	return filepath.Join(SharedDir(socket), filepath.Base(socket))
}

// Address is the gRPC address of a service.
func (l Layout) Address(s Service) string { return "unix://" + l.Socket(s) }

// WithRuntimeSockets returns the Layout of a node whose bundled containerd has its sockets in a directory of their own,
// so that what sees the sockets of the services does not see them. It fails if the path is too long for them.
func (l Layout) WithRuntimeSockets(dir string) (Layout, error) {
	if len(dir)+longestSocketName > maxSocketPath {
		return Layout{}, fmt.Errorf("%s is too long for sockets, whose paths have at most %d bytes", dir, maxSocketPath)
	}
	l.runtimeDir = dir
	return l, nil
}

// RuntimeSocketDir is the directory of the sockets of the bundled containerd.
func (l Layout) RuntimeSocketDir() string { return cmp.Or(l.runtimeDir, l.SocketDir()) }

// RuntimeSocket is the path of the bundled containerd's socket.
func (l Layout) RuntimeSocket() string { return filepath.Join(l.RuntimeSocketDir(), "containerd.sock") }

// RuntimeEndpoint is the CRI endpoint of the bundled containerd.
func (l Layout) RuntimeEndpoint() string { return "unix://" + l.RuntimeSocket() }

// ShimSocketDir is the directory of the sockets of the bundled containerd's shims.
func (l Layout) ShimSocketDir() string { return filepath.Join(l.RuntimeSocketDir(), "s") }

// PIDDir is the directory with a file NAME.pid for each process of the node.
func (l Layout) PIDDir() string { return filepath.Join(l.stateDir, "run") }

// PIDFile is the PID file of a service, of "quartet" (the command that supervises the four) or of "containerd".
func (l Layout) PIDFile(name string) string { return filepath.Join(l.PIDDir(), name+".pid") }

// Logs is the directory of the logs of the node's own processes.
func (l Layout) Logs() string { return filepath.Join(l.stateDir, "logs") }

// NodeLog is the output of the node that runs in the background.
func (l Layout) NodeLog() string { return filepath.Join(l.Logs(), "node.log") }

// PodLogs is the directory of the logs of containers.
func (l Layout) PodLogs() string { return filepath.Join(l.stateDir, "logs", "pods") }

// Manifests is the default directory of static pods.
func (l Layout) Manifests() string { return filepath.Join(l.stateDir, "manifests") }

// Root is the directory of the pods' volumes and files, as the kubelet's root directory.
func (l Layout) Root() string { return filepath.Join(l.stateDir, "root") }

// CgroupRoot is the parent of the pods' cgroups. It is different for each node, so that two nodes of a machine, or a
// node and a kubelet, do not limit or remove each other's cgroups.
func (l Layout) CgroupRoot() string { return filepath.Join("/quartet", l.stateDir) }

// ConfigFile is the KubeletConfiguration that `quartet up` writes.
func (l Layout) ConfigFile() string { return filepath.Join(l.stateDir, "kubelet.yaml") }

// Runtime is the directory of the bundled runtime's files: binaries, configuration, images and snapshots.
func (l Layout) Runtime() string { return filepath.Join(l.stateDir, "runtime") }

// RuntimeDist is the directory of the bundled runtime's programs and images if they come from an image and not from a
// build.
func (l Layout) RuntimeDist() string { return filepath.Join(l.Runtime(), "dist") }
