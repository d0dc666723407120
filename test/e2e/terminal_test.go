package e2e

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
)

// terminal is kubectl with a terminal, as an interactive user has it.
type terminal struct {
	t    *testing.T
	cmd  *exec.Cmd
	pty  *os.File
	read sync.WaitGroup

	mu     sync.Mutex
	output strings.Builder
}

// terminal starts kubectl on a terminal of the given size. It ends with the test.
func (r *remote) terminal(t *testing.T, lines, columns uint16, args ...string) *terminal {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	s := &terminal{t: t, cmd: r.command(ctx, args...)}
	var err error
	if s.pty, err = pty.StartWithSize(s.cmd, &pty.Winsize{Rows: lines, Cols: columns}); err != nil {
		cancel()
		t.Fatal(err)
	}
	s.read.Go(func() { _, _ = io.Copy(s, s.pty) }) // reading returns an error at the end of a terminal
	t.Cleanup(func() {
		cancel()
		_ = s.cmd.Wait() // it was killed, or waited for
		_ = s.pty.Close()
		s.read.Wait()
	})
	return s
}

// Write records the output of kubectl.
func (s *terminal) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.output.Write(b)
}

// await waits until kubectl has printed a text.
func (s *terminal) await(want string) {
	s.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		s.mu.Lock()
		output := s.output.String()
		s.mu.Unlock()
		if strings.Contains(output, want) {
			return
		}
		select {
		case <-deadline.C:
			s.t.Fatalf("kubectl does not print %q, but %q", want, output)
		case <-tick.C:
		}
	}
}

// write sends the user's input, and resize changes the size of the window.
func (s *terminal) write(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.pty, text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *terminal) resize(lines, columns uint16) {
	s.t.Helper()
	if err := pty.Setsize(s.pty, &pty.Winsize{Rows: lines, Cols: columns}); err != nil {
		s.t.Fatal(err)
	}
}

// ended waits for kubectl's end and returns its exit code.
func (s *terminal) ended() int {
	s.t.Helper()
	var failed *exec.ExitError
	if err := s.cmd.Wait(); err != nil && !errors.As(err, &failed) {
		s.t.Fatal(err)
	}
	return s.cmd.ProcessState.ExitCode()
}

// execTerminal tests that a program has a terminal of the client's size, also after a resize, and that the client gets
// the exit code.
func (r *remote) execTerminal(t *testing.T) {
	s := r.terminal(t, 31, 97, "exec", "-it", "streams", "--", "/streams", "terminal")
	s.await("terminal of 31 lines, 97 columns\r\n")
	s.resize(42, 123)
	s.await("terminal of 42 lines, 123 columns\r\n")
	s.write("a b\r")
	s.await("a b\r\nread a b\r\n") // the terminal echoes the input
	s.write("end\r")
	if code := s.ended(); code != 5 {
		t.Errorf("kubectl ends with %d, and the program with 5, want 5", code)
	}
}

// attachTerminal tests the same with a container that has a terminal. The container keeps running when the client
// detaches.
func (r *remote) attachTerminal(t *testing.T) {
	s := r.terminal(t, 33, 99, "attach", "-it", "-q", "terminal")
	s.await("terminal of 33 lines, 99 columns\r\n")
	s.resize(44, 111)
	s.await("terminal of 44 lines, 111 columns\r\n")
	s.write("typed\r")
	s.await("read typed\r\n")
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.ended()
	stdout, stderr, code := r.kubectl(t, "", "get", "pod", "terminal", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
	if stdout != "0" || code != 0 {
		t.Errorf("the container was started again %q times: %s", stdout, stderr)
	}
}
