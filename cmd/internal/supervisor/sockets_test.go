package supervisor_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quartet-node/quartet/cmd/internal/supervisor"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// server is the first argument that makes this program answer connections to the address in its second argument with
// its process id.
const server = "server"

func serve(address string) error {
	given := sockets.Take(systemd.Notifier{})
	listener, err := given.Listen(context.Background(), sockets.Socket{Name: "api", Address: address}, slog.Default())
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if _, err := fmt.Fprint(conn, os.Getpid()); err != nil {
			return err
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
}

// TestAConnectionWaitsForAProcessThatIsAway: a connection that is made while the process is down is answered by the
// next one. No other process has the socket.
func TestAConnectionWaitsForAProcessThatIsAway(t *testing.T) {
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	var out, events logbuffer.Buffer
	var held sockets.Set
	logger := slog.New(slog.NewTextHandler(&events, nil))
	socket := sockets.Socket{Name: "api", Address: freeAddress(t)}
	output := supervisor.NewOutput(&out, "api", "other")
	pidOf := (&node{pids: dir}).pid
	services := []supervisor.Service{
		&supervisor.Process{
			// It does not restart before the test allows it.
			Name: "api",
			Path: "/bin/sh",
			Args: []string{
				"-c",
				`while test -e "$0"; do sleep 0.02; done; exec "$@"`,
				gate,
				os.Args[0],
				server,
				socket.Address,
			},
			Output:  output,
			PIDFile: filepath.Join(dir, "api.pid"),
			Grace:   time.Minute,
			Sockets: func(ctx context.Context) []sockets.Held {
				one, opened, err := held.Hold(ctx, socket, logger)
				if err != nil || !opened {
					t.Errorf("the socket is not held: %v", err)
				}
				return []sockets.Held{one}
			},
		},
		&supervisor.Process{
			Name:    "other",
			Path:    "/bin/sh",
			Args:    []string{"-c", steady},
			Output:  output,
			PIDFile: filepath.Join(dir, "other.pid"),
			Grace:   time.Minute,
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- supervisor.Run(ctx, supervisor.Config{Services: services, Logger: logger, StopTimeout: time.Minute,
			Backoff: time.Hour})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := held.Close(); err != nil {
			t.Error(err)
		}
	}()

	eventually.That(t, "both run", func() bool { return pidOf("api") != 0 && pidOf("other") != 0 })
	first := pidOf("api")
	if got := ask(t, dial(t, socket.Address)); got != first {
		t.Errorf("%d has answered, want %d", got, first)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "it is dead", func() bool { return pidOf("api") != first })
	waiting := dial(t, socket.Address)
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	next := ask(t, waiting)
	if next == first {
		t.Errorf("%d has answered, which is dead", next)
	}
	eventually.That(t, "who has answered is the next process", func() bool { return pidOf("api") == next })
	if links := socketsOf(t, pidOf("other")); len(links) > 0 {
		t.Errorf("the other process has %q", links)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint("127.0.0.1:", port)
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatalf("nobody listens: %v", err)
	}
	return conn
}

// ask returns the process id that the other end of a connection sends.
func ask(t *testing.T, conn net.Conn) int {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	pid, convErr := strconv.Atoi(string(answer))
	if err != nil || convErr != nil {
		t.Errorf("the answer is %q, %v", answer, err)
	}
	return pid
}

// socketsOf returns the open sockets of a process.
func socketsOf(t *testing.T, pid int) (links []string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if link, err := os.Readlink(file); err == nil && strings.HasPrefix(link, "socket:") {
			links = append(links, link)
		}
	}
	return links
}
