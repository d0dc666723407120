package nodecmd

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// keepSockets closes the sockets that this process was passed and that no service is configured to listen on.
func (o Options) keepSockets(l layout.Layout, logger *slog.Logger) {
	var wanted []sockets.Socket
	for _, service := range o.Configmux.Services() {
		for _, socket := range o.socketsOf(l, service) {
			wanted = append(wanted, ofService(service, socket))
		}
	}
	o.Sockets.Keep(wanted, logger)
}

// holdSockets returns the function that opens the sockets of a service before each start of it. They stay open while
// the service restarts, so that connections wait and are not refused. A socket that cannot be opened does not prevent
// the start: the service then tries to listen by itself, and reports the error as it does without a supervisor.
func (o Options) holdSockets(
	l layout.Layout,
	service layout.Service,
	logger *slog.Logger,
) func(context.Context) []sockets.Held {
	return func(ctx context.Context) []sockets.Held {
		var held []sockets.Held
		for _, socket := range o.socketsOf(l, service) {
			one, opened, err := o.Sockets.Hold(ctx, ofService(service, socket), logger)
			switch {
			case err != nil:
				logger.Warn("a socket is not kept open while its process restarts; the process tries to listen by itself",
					"process", service, "socket", socket.Name, "address", socket.Address, telemetry.KeyError, err)
			case opened:
				one.Name = socket.Name
				held = append(held, one)
			}
		}
		return held
	}
}

// ofService returns a socket of a service with its name in this process and in systemd's store: the names of those that
// several services have are preceded by the service. The service itself knows the name without it.
func ofService(service layout.Service, socket sockets.Socket) sockets.Socket {
	switch socket.Name {
	case nodeconfig.SocketAPI, nodeconfig.SocketReadOnly, nodeconfig.SocketHealthz:
		// One service has it. systemd may have stored it for an earlier version.
	default:
		socket.Name = string(service) + "-" + socket.Name
	}
	return socket
}

// socketsOf returns the sockets of the current configuration file; none if that is wrong, which the service itself
// reports.
func (o Options) socketsOf(l layout.Layout, service layout.Service) []sockets.Socket {
	if file, err := o.file(); err == nil {
		if known, ok := o.known.get(service, file); ok {
			return known
		}
	}
	cfg, err := o.parse(l, service)
	if err != nil {
		return nil
	}
	return cfg.TCPSockets(service)
}

// parse returns the configuration of a service, and remembers its sockets.
func (o Options) parse(l layout.Layout, service layout.Service) (nodeconfig.Config, error) {
	file, readErr := o.file()
	cfg, err := nodeconfig.Parse(service, o.args(l, service), io.Discard)
	if err == nil && readErr == nil {
		o.known.put(service, file, cfg.TCPSockets(service))
	}
	return cfg, err
}

// file returns the content of the configuration file; empty without one.
func (o Options) file() ([]byte, error) {
	if o.ConfigFile == "" {
		return nil, nil
	}
	return os.ReadFile(o.ConfigFile)
}

// knownSockets has the sockets of services by the configuration file of its content. To parse it takes a millisecond,
// and a start needs the sockets of each service three times.
type knownSockets struct {
	mu   sync.Mutex
	file []byte
	all  map[layout.Service][]sockets.Socket
}

// get returns the sockets of a service; false if they are not known for a file of this content.
func (k *knownSockets) get(service layout.Service, file []byte) ([]sockets.Socket, bool) {
	if k == nil {
		return nil, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known, ok := k.all[service]
	return known, ok && bytes.Equal(k.file, file)
}

// put remembers the sockets of a service for a file of this content, and forgets those of another content.
func (k *knownSockets) put(service layout.Service, file []byte, all []sockets.Socket) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil || !bytes.Equal(k.file, file) {
		k.file, k.all = file, map[layout.Service][]sockets.Socket{}
	}
	k.all[service] = all
}
