package kubeletapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"

	"github.com/quartet-node/quartet/internal/sockets"
)

// Listen returns a listener for a socket: the passed one, or a new one. The name of the socket is the field of the
// KubeletConfiguration that sets the port. If the port is in use, the error says how to find the other process.
func Listen(ctx context.Context, given *sockets.Set, socket sockets.Socket, logger *slog.Logger) (net.Listener, error) {
	listener, err := given.Listen(ctx, socket, logger)
	if !errors.Is(err, syscall.EADDRINUSE) {
		if err != nil {
			return nil, fmt.Errorf("%s: listen on %s: %w", socket.Name, socket.Address, err)
		}
		return listener, nil
	}
	_, port, splitErr := net.SplitHostPort(socket.Address)
	if splitErr != nil {
		return nil, errors.Join(err, splitErr)
	}
	return nil, fmt.Errorf("%s: %s is taken by another process (a kubelet, or another node of Quartet? \"ss -ltnp sport = :%s\" names it): "+
		"stop that, set %s to another port, or leave this API off by readOnlyPort: 0 or enableServer: false: %w", socket.Name, socket.Address, port, socket.Name, err)
}

// ListenReadOnly is Listen for the read-only API. It fails if the address is not a loopback address.
func ListenReadOnly(
	ctx context.Context, given *sockets.Set, socket sockets.Socket, logger *slog.Logger,
) (net.Listener, error) {
	host, _, err := net.SplitHostPort(socket.Address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("%s on address %q: the read-only API has no TLS and is served on the loopback interface only", socket.Name, socket.Address)
	}
	return Listen(ctx, given, socket, logger)
}
