package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/nodeprocess"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rpc"
)

const (
	// envPrefix is the beginning of the environment variables with the defaults of the flags of addresses and TLS:
	// QUARTET_PLEG_ADDRESS for --pleg-address.
	envPrefix = "QUARTET_"
	// networkTimeout bounds the connection to a service on another machine.
	networkTimeout = 10 * time.Second
)

// Node is the node of a command: that of a state directory, or one whose services have addresses of their own, also on
// another machine.
type Node struct {
	StateDir string

	// given are the addresses of the flags; empty for those of the state directory.
	given map[layout.Service]*string
	tls   peertls.Files
}

// AddFlags registers --state-dir, and the flags of addresses and TLS. Several commands may share a node.
func (n *Node) AddFlags(flags *pflag.FlagSet) {
	n.addFlags(flags, layout.Services())
}

// AddFlagsOf registers --state-dir and the flags of TLS, for a command that takes the address of a service as its
// argument, see At.
func (n *Node) AddFlagsOf(flags *pflag.FlagSet) {
	n.addFlags(flags, nil)
}

// At sets the address of a service.
func (n *Node) At(service layout.Service, address string) {
	if n.given == nil {
		n.given = map[layout.Service]*string{}
	}
	n.given[service] = &address
}

func (n *Node) addFlags(flags *pflag.FlagSet, services []layout.Service) {
	AddFlag(flags, &n.StateDir)
	own := pflag.NewFlagSet("", pflag.ContinueOnError)
	if n.given == nil {
		n.given = map[layout.Service]*string{}
	}
	for _, service := range services {
		if n.given[service] == nil {
			n.given[service] = new(string)
		}
		own.StringVar(n.given[service], string(service)+"-address", "",
			"`ADDRESS` of "+string(service)+", such as HOST:PORT with TLS, instead of that of the state directory")
	}
	nodeconfig.AddTLSFiles(own, &n.tls)
	own.VisitAll(func(flag *pflag.Flag) {
		if value := os.Getenv(envPrefix + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))); value != "" {
			flag.DefValue = value
			_ = flag.Value.Set(value) // a string takes every value
		}
	})
	flags.AddFlagSet(own)
}

// way is how a service is reached.
type way struct {
	address string
	files   peertls.Files
	// ofSyncloop is true if it is the way of the node's syncloop, which no flag gives.
	ofSyncloop bool
}

// way returns how a service is reached: by the flags, or else as the node's syncloop reaches a configmux elsewhere, or
// else by the socket in the state directory.
func (n *Node) way(service layout.Service) (way, error) {
	if given := n.given[service]; given != nil && *given != "" {
		return way{address: *given, files: n.tls}, nil
	}
	if service == layout.ConfigMux {
		if elsewhere, found := ConfigmuxElsewhere(n.StateDir); found {
			w := way{address: elsewhere.Address, files: n.tls, ofSyncloop: true}
			if w.files == (peertls.Files{}) {
				w.files = elsewhere.Files
			}
			return w, nil
		}
	}
	address, err := Address(n.StateDir, service)
	return way{address: address, files: n.tls}, err
}

// ConfigmuxElsewhere returns the configmux on another machine that serves the node of a state directory; false if the
// node has its own, or its syncloop does not run.
func ConfigmuxElsewhere(stateDir string) (nodeprocess.Configmux, bool) {
	return nodeprocess.ConfigmuxElsewhere(orDefault(stateDir))
}

// Address returns the address of a service.
func (n *Node) Address(service layout.Service) (string, error) {
	w, err := n.way(service)
	return w.address, err
}

// Dial returns a connection to a service that need not be reachable yet.
func (n *Node) Dial(service layout.Service) (*grpc.ClientConn, error) {
	w, err := n.way(service)
	if err != nil {
		return nil, err
	}
	return w.dial(service)
}

func (w way) dial(service layout.Service) (*grpc.ClientConn, error) {
	conn, err := rpc.DialService(service, w.address, w.files)
	if err != nil && w.ofSyncloop {
		return nil, fmt.Errorf("cannot reach configmux at %s as the node's syncloop does, by its certificate: %w: run the "+
			"command as root, or give --configmux-address, --%s, --%s and --%s where the command has them",
			w.address, err, peertls.FlagCert, peertls.FlagKey, peertls.FlagCA)
	}
	return conn, err
}

// Connect returns a connection to a reachable service. Its error has a remedy.
func (n *Node) Connect(ctx context.Context, service layout.Service) (*grpc.ClientConn, error) {
	w, err := n.way(service)
	switch {
	case err != nil:
		return nil, err
	case !peertls.OnNetwork(w.address):
		return connect(ctx, n.StateDir, service, w.address)
	}
	conn, err := w.dial(service)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		return nil, errors.Join(
			fmt.Errorf("cannot reach %s at %s: %s", service, w.address, status.Convert(err).Message()), conn.Close())
	}
	return conn, nil
}
