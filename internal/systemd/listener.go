package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

const (
	// maxMessage bounds the bytes of a message that are read.
	maxMessage = 4096
	// reportTimeout is how long a process may send nothing: five periods of package watchdog.
	reportTimeout = 10 * time.Second
	// firstTimeout is how long it may send nothing from its start on. The first message follows the start by 10 to 20 ms;
	// an earlier version sends none before it is ready.
	firstTimeout = 2 * time.Minute
)

// Listener is for a parent process what systemd is for a unit of Type=notify: it receives the messages of sd_notify(3)
// of one child process after another. Its socket is in no file system, so that a disk can neither lack it nor delay it.
// The kernel says who has sent a message, and one that is not of a child of this process is dropped.
type Listener struct {
	conn     *net.UnixConn
	clock    clock.PassiveClock
	watchdog time.Duration
	ready    chan struct{}

	mu sync.Mutex
	// pid is the child that has reported last that it works, at the time of alive. 0 if none has.
	pid   int
	alive time.Time
	// heard is the child that has sent the last message; 0 if none has.
	heard int
	// begun is the child that was started last and sends messages, at the time of started; 0 if there is none.
	begun   int
	started time.Time
	// deaf is whether Run has ended, so that no message is received any more.
	deaf bool
}

// Listen opens the socket of a Listener. A child is to report that it works within the watchdog's time, as with
// WatchdogSec of a unit; never if that is 0. Run closes the socket.
func Listen(watchdog time.Duration, clock clock.PassiveClock) (*Listener, error) {
	// The kernel chooses the name: unix(7), "autobind".
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("listening to a child process: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	var setErr error
	if err := raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}); err != nil || setErr != nil {
		return nil, errors.Join(err, setErr, conn.Close())
	}
	return &Listener{conn: conn, clock: clock, watchdog: watchdog, ready: make(chan struct{})}, nil
}

// Env returns the variables for the environment of the child, NAME=VALUE.
func (l *Listener) Env() []string {
	env := []string{variable + "=" + l.conn.LocalAddr().String()}
	if l.watchdog > 0 {
		env = append(env, watchdogVariable+"="+strconv.FormatInt(l.watchdog.Microseconds(), 10))
	}
	return env
}

// Ready is closed when a child has reported for the first time that it is ready.
func (l *Listener) Ready() <-chan struct{} { return l.ready }

// Started notes the start of a child that sends messages. It may be called after its first one.
func (l *Listener) Started(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.deaf {
		l.begun, l.started = pid, l.clock.Now()
	}
}

// Run receives messages until ctx ends, and closes the socket. It fails if the socket cannot be read. When it has
// ended, no child stands still.
func (l *Listener) Run(ctx context.Context) error {
	defer l.forget()
	defer context.AfterFunc(ctx, func() { _ = l.conn.Close() })() // nothing was written
	message := make([]byte, maxMessage)
	// There is no room for descriptors, which the kernel then drops.
	credentials := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	for {
		n, c, _, _, err := l.conn.ReadMsgUnix(message, credentials)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Join(fmt.Errorf("reading the messages of a child process: %w", err), l.conn.Close())
		}
		l.take(string(message[:n]), sender(credentials[:c]))
	}
}

// sender returns the process that the kernel names; 0 if it names none.
func sender(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if ucred, err := unix.ParseUnixCredentials(&m); err == nil {
			return int(ucred.Pid)
		}
	}
	return 0
}

func (l *Listener) take(message string, pid int) {
	assignments := strings.Split(message, "\n")
	isReady, isAlive := slices.Contains(assignments, ready), slices.Contains(assignments, alive)
	if !isReady && !isAlive || !l.known(pid) && !isChild(pid) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = pid
	if isAlive {
		l.pid, l.alive = pid, l.clock.Now()
	}
	select {
	case <-l.ready:
	default:
		if isReady {
			close(l.ready)
		}
	}
}

// forget forgets the last child, which cannot report any more, and nor can one that is started later.
func (l *Listener) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pid, l.begun, l.deaf = 0, 0, true
}

func (l *Listener) known(pid int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pid == pid && pid != 0
}

// isChild reports whether a process is a child of this one.
func isChild(pid int) bool {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	stat, err := proc.Stat()
	return err == nil && stat.PPID == os.Getpid()
}

// Stands returns why a child stands still: it has reported that it works, and does so no longer, or Started has noted
// it and it has sent nothing since. It is nil for one that only says that it is ready: its version knows no watchdog.
func (l *Listener) Stands(pid int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case pid == l.begun && pid != l.heard:
		if quiet := l.clock.Since(l.started); quiet > firstTimeout {
			return fmt.Errorf("it has reported nothing since its start %v ago", quiet.Round(time.Second))
		}
	case pid == l.pid:
		if quiet := l.clock.Since(l.alive); quiet > reportTimeout {
			return fmt.Errorf("it has not reported for %v that it works", quiet.Round(time.Second))
		}
	}
	return nil
}
