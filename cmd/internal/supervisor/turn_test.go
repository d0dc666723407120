package supervisor_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quartet-node/quartet/cmd/internal/supervisor"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestProcessesStartInOrder starts four processes together, one of which cannot be started.
func TestProcessesStartInOrder(t *testing.T) {
	var mu sync.Mutex
	var begun []string
	var services []supervisor.Service
	names := []string{"a", "b", "c", "d"}
	out := supervisor.NewOutput(&logbuffer.Buffer{}, names...)
	for _, name := range names {
		path := "/bin/sh"
		if name == "b" {
			path = "/does/not/exist"
		}
		services = append(services, &supervisor.Process{
			Name: name, Path: path, Args: []string{"-c", steady}, Output: out, Grace: time.Second,
			Sockets: func(context.Context) []sockets.Held {
				mu.Lock()
				defer mu.Unlock()
				if !slices.Contains(begun, name) { // another try of b
					begun = append(begun, name)
				}
				return nil
			},
		})
	}
	run(t, services)
	eventually.That(t, "all have been started", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(begun) == len(names)
	})
	if !slices.Equal(begun, names) {
		t.Errorf("they were started in the order %q, want %q", begun, names)
	}
}

// TestAStartThatHangsDelaysNoOther has the first of two processes wait for its sockets for ever.
func TestAStartThatHangsDelaysNoOther(t *testing.T) {
	buffer := &logbuffer.Buffer{}
	out := supervisor.NewOutput(buffer, "hangs", "steady", "crash")
	process := func(name, script string) *supervisor.Process {
		return &supervisor.Process{
			Name: name, Path: "/bin/sh", Args: []string{"-c", script}, Output: out, Grace: time.Second,
		}
	}
	hangs := process("hangs", steady)
	hangs.Sockets = func(ctx context.Context) []sockets.Held {
		<-ctx.Done()
		return nil
	}
	run(t, []supervisor.Service{hangs, process("steady", steady), process("crash", "echo once more; exit 3")})
	eventually.That(t, "the others run, and one that ends is started again", func() bool {
		out := buffer.String()
		return strings.Contains(out, "steady | up\n") && strings.Count(out, "crash  | once more\n") > 1
	})
}

// run supervises services until the test ends.
func run(t *testing.T, services []supervisor.Service) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- supervisor.Run(ctx, supervisor.Config{
			Services: services, Logger: slog.New(slog.DiscardHandler), StopTimeout: time.Minute, Backoff: time.Hour,
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
