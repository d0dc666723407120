package nodecmd

import (
	"context"
	"io"
	"log/slog"

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
	cfg, err := nodeconfig.Parse(service, o.args(l, service), io.Discard)
	if err != nil {
		return nil
	}
	return cfg.TCPSockets(service)
}
