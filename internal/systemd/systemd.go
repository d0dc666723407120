// Package systemd tells the systemd that has started a process how far that is, as sd_notify(3) has it: a unit of Type=notify is
// active when its process serves, and not before. It also has systemd keep descriptors while the process is away.
//
// go-systemd's package daemon is not used for it: that finds the socket in the environment at each message, where every process that
// is started meanwhile would find it, too.
package systemd

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

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

// Store has systemd keep a descriptor and give it, under the name, to the next start of the unit, if the unit permits that by
// FileDescriptorStoreMax=.
func (n Notifier) Store(name string, file *os.File, logger *slog.Logger) {
	n.sendWith("FDSTORE=1\nFDNAME="+name, file, logger)
}

// Forget has systemd close the descriptors that it keeps under the name.
func (n Notifier) Forget(name string, logger *slog.Logger) {
	n.send("FDSTOREREMOVE=1\nFDNAME="+name, logger)
}

func (n Notifier) send(message string, logger *slog.Logger) { n.sendWith(message, nil, logger) }

// sendWith sends a message, with a descriptor unless that is nil.
func (n Notifier) sendWith(message string, file *os.File, logger *slog.Logger) {
	if n.Socket == "" {
		return
	}
	if err := write(n.Socket, message, file); err != nil {
		logger.Warn("systemd is not told how this process is", "message", message, telemetry.KeyError, err)
	}
}

func write(socket, message string, file *os.File) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	defer func() { _ = conn.Close() }() // the message is on its way, or is not
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	// The method WriteMsgUnix refuses a socket that is connected, and an unconnected one would need an address of its own.
	var sendErr error
	if err := raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), []byte(message), rights, nil, unix.MSG_NOSIGNAL)
		return !errors.Is(sendErr, unix.EAGAIN)
	}); err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	if sendErr != nil {
		return fmt.Errorf("%s: %w", variable, sendErr)
	}
	return nil
}
