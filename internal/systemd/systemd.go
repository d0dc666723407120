// Package systemd tells the systemd that has started a process how far that is, as sd_notify(3) has it: a unit of Type=notify is
// active when its process serves, and not before.
//
// go-systemd's package daemon is not used for it: that finds the socket in the environment at each message, where every process that
// is started meanwhile would find it, too.
package systemd

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// variable names the socket.
	variable = "NOTIFY_SOCKET"
	// ready and stopping are the messages.
	ready, stopping = "READY=1", "STOPPING=1"
	// patience is how long systemd may take to make room for a message: it then has other troubles.
	patience = time.Second
)

// Notifier sends messages to the systemd that has started this process. The zero value is of a process that was started by nobody who
// wants to know, and sends nothing.
type Notifier struct {
	// Socket is the path of the socket, or @NAME for one without a file.
	Socket string
}

// Take takes the socket out of the environment of this process, so that none that it starts speaks in its name.
func Take() Notifier {
	n := Notifier{Socket: os.Getenv(variable)}
	_ = os.Unsetenv(variable) // fails only for what is no name
	return n
}

// Ready says that this process serves. That it cannot be said is in the log, for nothing else can be done about it.
func (n Notifier) Ready(logger *slog.Logger) { n.send(ready, logger) }

// Stopping says that it ends, as Ready does.
func (n Notifier) Stopping(logger *slog.Logger) { n.send(stopping, logger) }

func (n Notifier) send(message string, logger *slog.Logger) {
	if n.Socket == "" {
		return
	}
	if err := write(n.Socket, message); err != nil {
		logger.Warn("systemd is not told how this process is", "message", message, telemetry.KeyError, err)
	}
}

func write(socket, message string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	defer func() { _ = conn.Close() }() // the message is on its way, or is not
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	if _, err := conn.Write([]byte(message)); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	return nil
}
