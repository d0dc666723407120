package target

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeprocess"
	"github.com/quartet-node/quartet/internal/rpc"
)

// probeTimeout bounds the connection to a socket on this machine.
const probeTimeout = 200 * time.Millisecond

// Address returns the address of a service of the node of a state directory; empty means the default.
func Address(stateDir string, service layout.Service) (string, error) {
	addresses, err := SocketAddresses(stateDir)
	if err != nil {
		return "", err
	}
	switch service {
	case layout.ConfigMux:
		return addresses.ConfigMux, nil
	case layout.PLEG:
		return addresses.PLEG, nil
	case layout.SyncLoop:
		return addresses.SyncLoop, nil
	case layout.NodeStatus:
		return addresses.NodeStatus, nil
	default:
		return "", fmt.Errorf("there is no service %q", service)
	}
}

// connect returns a connection to a reachable unix socket.
func connect(ctx context.Context, stateDir string, service layout.Service, address string) (*grpc.ClientConn, error) {
	probe, err := rpc.Connect(ctx, address)
	if err != nil {
		return nil, unreachable(stateDir, service, address, err)
	}
	refused := rpc.CheckAccess(probe, address)
	if err := probe.Close(); err != nil {
		return nil, fmt.Errorf("reaching %s at %s: %w", service, address, err)
	}
	if refused != nil {
		return nil, refused
	}
	return rpc.Dial(address)
}

func unreachable(stateDir string, service layout.Service, address string, err error) error {
	var impostor *rpc.ImpostorError
	if errors.As(err, &impostor) {
		return impostor
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("cannot reach %s at %s: this user may not: run the command as root", service, address)
	}
	if others := answering(stateDir, service); len(others) > 0 {
		return fmt.Errorf(
			"cannot reach %s at %s: it does not run, although %s of the same node does: its supervisor restarts it within seconds; if not, see its log%s",
			service,
			address,
			strings.Join(others, ", "),
			elsewhere(stateDir, service),
		)
	}
	up := "quartet up"
	if stateDir != "" && stateDir != layout.DefaultStateDir {
		up += " --state-dir " + stateDir
	}
	return fmt.Errorf(
		"cannot reach %s at %s: is the node running? start it with '%s', or name its state directory with --state-dir or %s%s",
		service,
		address,
		up,
		EnvStateDir,
		otherNode(stateDir, kubeletStateDir),
	)
}

// elsewhere returns the end of a message for a node that may have no configmux of its own, because the command line of
// its syncloop cannot be read: in a container, or by this user.
func elsewhere(stateDir string, service layout.Service) string {
	if p, _ := nodeprocess.Of(orDefault(stateDir), layout.SyncLoop); service != layout.ConfigMux || p.PID != 0 {
		return ""
	}
	return "; if the pods come from a configmux elsewhere, run the command as root on the machine of syncloop, or give " +
		"--configmux-address with --tls-cert, --tls-key and --tls-ca"
}

// kubeletStateDir is the state directory of a node in the place of a kubelet.
const kubeletStateDir = "/var/lib/kubelet/quartet"

// otherNode returns the end of a message that names the state directory of another node of this machine; empty if there
// is none, or if the user has chosen a directory.
func otherNode(stateDir, other string) string {
	if stateDir != "" && stateDir != layout.DefaultStateDir {
		return ""
	}
	if info, err := os.Stat(other); err != nil || !info.IsDir() {
		return ""
	}
	return ": a node in the place of a kubelet has " + other
}

// answering returns the other services of the node that accept connections.
func answering(stateDir string, service layout.Service) []string {
	var names []string
	for _, other := range layout.Services() {
		address, err := Address(stateDir, other)
		if other == service || err != nil {
			continue
		}
		conn, err := net.DialTimeout("unix", strings.TrimPrefix(address, "unix://"), probeTimeout)
		if err != nil {
			continue
		}
		_ = conn.Close() // nothing was sent on it
		names = append(names, string(other))
	}
	return names
}
