// Package systemd notifies the systemd, or another supervisor, that has started a process of its state, as sd_notify(3)
// describes: a unit of Type=notify is active when its process is ready, and not before. It also stores descriptors in
// systemd during a restart. A Listener is the other side, for a parent process that is not systemd.
//
// go-systemd's package daemon is not used because it reads the socket from the environment for each message, so that
// child processes would inherit it.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/logging"
)

const (
	// variable names the socket.
	variable = "NOTIFY_SOCKET"
	// watchdogVariable has the microseconds within which systemd expects the next message of the watchdog.
	watchdogVariable = "WATCHDOG_USEC"
	// ready, stopping and alive are the messages.
	ready, stopping, alive = "READY=1", "STOPPING=1", "WATCHDOG=1"
	// notifyTimeout bounds the wait for systemd to accept a message.
	notifyTimeout = time.Second
)

// Notifier sends messages to the systemd that has started this process. The zero value, for a process that was started
// without a notification socket, sends nothing.
type Notifier struct {
	// Socket is the path of the socket, or @NAME for one without a file.
	Socket string
	// Watchdog is the time within which systemd expects the next Alive; 0 if it expects none. It is WatchdogSec of the
	// unit.
	Watchdog time.Duration
}

// Take removes the socket from the environment of this process and returns its Notifier, so that child processes cannot
// use it.
func Take() Notifier {
	n := Notifier{Socket: os.Getenv(variable)}
	if usec, err := strconv.ParseInt(os.Getenv(watchdogVariable), 10, 64); err == nil {
		n.Watchdog = time.Duration(usec) * time.Microsecond
	}
	_, _ = os.Unsetenv(variable), os.Unsetenv(watchdogVariable) // they fail only for an invalid name
	return n
}

// Alive reports that this process works, if systemd expects that. It logs a failure.
func (n Notifier) Alive(logger *slog.Logger) {
	if n.Watchdog > 0 {
		n.send(alive, logger)
	}
}

// KeepAlive calls Alive often enough until ctx ends.
func (n Notifier) KeepAlive(ctx context.Context, clock clock.Clock, logger *slog.Logger) {
	if n.Watchdog <= 0 {
		return
	}
	for {
		n.Alive(logger)
		select {
		case <-ctx.Done():
			return
		case <-clock.After(n.Watchdog / 2): //nolint:mnd // as sd_watchdog_enabled(3) recommends
		}
	}
}

// Ready reports that this process is ready. It logs a failure.
func (n Notifier) Ready(logger *slog.Logger) { n.send(ready, logger) }

// Stopping reports that this process is stopping. It logs a failure.
func (n Notifier) Stopping(logger *slog.Logger) { n.send(stopping, logger) }

// Store has systemd keep a descriptor and pass it under the name to the next start of the unit, if the unit permits
// that with FileDescriptorStoreMax=.
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
		logger.Warn("cannot notify the supervisor of the state of this process", "message", message, logging.KeyError, err)
	}
}

func write(socket, message string, file *os.File) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("%s: %w", variable, err)
	}
	defer func() { _ = conn.Close() }() // the message was sent, or writing it has failed
	if err := conn.SetWriteDeadline(time.Now().Add(notifyTimeout)); err != nil {
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
	// The method WriteMsgUnix refuses a connected socket, and an unconnected one would need its own address.
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
