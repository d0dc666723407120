package supervisor_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/quartet-node/quartet/cmd/internal/supervisor"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestATerminalThatIsStoppedStopsNothing: a terminal that nobody reads, as after Ctrl-S, neither blocks a process that
// prints a lot nor the supervisor, and says how many lines are missing when it is read again.
func TestATerminalThatIsStoppedStopsNothing(t *testing.T) {
	reader, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = reader.Close(), terminal.Close() }()
	queue := logqueue.New(terminal)
	output := supervisor.NewOutput(queue, "quartet", "loud")
	logger := slog.New(slog.NewTextHandler(output.Prefixed("quartet"), nil))
	queue.OnDropped(func(lines int) { logger.Warn("lines were dropped", "lines", lines) })
	done := filepath.Join(t.TempDir(), "done")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- supervisor.Run(ctx, supervisor.Config{
			Services: []supervisor.Service{&supervisor.Process{
				Name: "loud", Path: "/bin/sh", Output: output, Grace: time.Minute, PIDFile: done + ".pid",
				Args: []string{"-c", `yes "$0" | head -n 200000; touch "$1"; exec sleep 1000`, strings.Repeat("x", 100), done},
			}},
			Logger: logger, StopTimeout: time.Minute, Backoff: time.Hour,
		})
	}()
	eventually.That(t, "the process has printed everything", func() bool {
		_, err := os.Stat(done)
		return err == nil
	})
	var seen logbuffer.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&seen, reader) // reading returns an error at the end of a terminal
	}()
	eventually.That(t, "the terminal says how many lines are missing", func() bool {
		return strings.Contains(seen.String(), `quartet | `) && strings.Contains(seen.String(), "lines were dropped")
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	queue.Close()
	if err := terminal.Close(); err != nil {
		t.Error(err)
	}
	<-read
	printed, missing := strings.Count(seen.String(), "loud    | xxx"), 0
	for line := range strings.Lines(seen.String()) {
		if _, number, found := strings.Cut(line, `msg="lines were dropped" lines=`); found {
			more := 0
			if _, err := fmt.Sscan(number, &more); err != nil {
				t.Error(err)
			}
			missing += more
		}
	}
	if missing == 0 || printed+missing < 200000 || printed+missing > 200000+10 {
		t.Errorf("%d lines were printed and %d are missing, want 200000 together", printed, missing)
	}
}

// TestTheEndDoesNotWaitForATerminalThatIsStopped checks that Close returns, and that it writes everything to a reader
// that reads.
func TestTheEndDoesNotWaitForATerminalThatIsStopped(t *testing.T) {
	stopped, stuck := io.Pipe()
	hanging := logqueue.New(stuck)
	_, _ = hanging.Write([]byte("a line\n"))
	begun := time.Now()
	hanging.Close()
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("Close() took %s", took)
	}
	_ = stopped.Close() // ends the goroutine of the queue

	var out logbuffer.Buffer
	queue := logqueue.New(&out)
	for range 1000 {
		_, _ = queue.Write([]byte("a line\n"))
	}
	queue.Close()
	if got := strings.Count(out.String(), "a line\n"); got != 1000 {
		t.Errorf("%d lines of 1000 were written before the end", got)
	}
}
