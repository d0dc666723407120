package logrotate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/logrotate"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// container writes its log as a runtime does: to a file that stays open until the log is reopened.
type container struct {
	t    *testing.T
	path string

	mu      sync.Mutex
	file    *os.File
	written int
}

func (c *container) reopen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		if err := c.file.Close(); err != nil {
			c.t.Error(err)
		}
	}
	var err error
	if c.file, err = os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640); err != nil {
		c.t.Error(err)
	}
}

// write writes some lines, numbered from the container's first one.
func (c *container) write(lines int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range lines {
		if _, err := fmt.Fprintf(c.file, "2026-05-01T11:59:00.123456789Z stdout F %06d\n", c.written); err != nil {
			c.t.Error(err)
		}
		c.written++
	}
}

// lineBytes is the size of a line of a container.
const lineBytes = 47

// node holds containers and a rotator of their logs.
type node struct {
	t     *testing.T
	dir   string
	clock *clocktesting.FakeClock
	log   *logbuffer.Buffer

	mu         sync.Mutex
	containers map[string]*container
	ended      map[string]bool
	// checks counts the checks of all logs.
	checks int
	// reopen runs before the runtime reopens a log; it may fail or hang.
	reopen func(ctx context.Context, id string) error
}

func newNode(t *testing.T) *node {
	t.Helper()
	// Later than the times of the files, so that none was written to in the last second.
	n := &node{
		t: t, dir: t.TempDir(), clock: clocktesting.NewFakeClock(time.Now().Add(time.Hour)), log: &logbuffer.Buffer{},
		containers: map[string]*container{}, ended: map[string]bool{},
	}
	t.Cleanup(func() {
		for _, c := range n.containers {
			if err := c.file.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

// add adds a container, whose folder may contain files already.
func (n *node) add(id string) *container {
	n.t.Helper()
	c := &container{t: n.t, path: filepath.Join(n.dir, id, "0.log")}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o750); err != nil {
		n.t.Fatal(err)
	}
	c.reopen()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.containers[id] = c
	return c
}

func (n *node) list() []logrotate.Container {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.checks++
	var all []logrotate.Container
	for id, c := range n.containers {
		all = append(all, logrotate.Container{ID: id, Pod: "shop/web", Name: id, LogPath: c.path, Running: !n.ended[id]})
	}
	return all
}

func (n *node) reopenLog(ctx context.Context, id string) error {
	n.mu.Lock()
	c, reopen := n.containers[id], n.reopen
	n.mu.Unlock()
	if reopen != nil {
		if err := reopen(ctx, id); err != nil {
			return err
		}
	}
	c.reopen()
	return nil
}

// start runs a rotator. stop cancels it and waits for its end.
func (n *node) start(policy logrotate.Policy) (stop func()) {
	n.t.Helper()
	r := logrotate.New(logrotate.Config{
		Containers: n.list, Reopen: n.reopenLog, Policy: policy, Workers: 1, Interval: interval, Clock: n.clock,
		Logger: slog.New(slog.NewTextHandler(n.log, nil)),
	})
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	n.eventually("the rotator waits", n.clock.HasWaiters)
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			n.t.Error(err)
		}
	}
}

// look runs the rotator for one check of all logs.
func (n *node) look(policy logrotate.Policy, until func() bool) {
	n.t.Helper()
	stop := n.start(policy)
	n.clock.Step(interval)
	n.eventually("the logs are in order", until)
	stop()
}

func (n *node) eventually(what string, holds func() bool) {
	n.t.Helper()
	eventually.Wait{State: func() string { return fmt.Sprintf("there is %v", n.names("c")) }}.That(n.t, what, holds)
}

// step advances the clock by intervals until a condition holds; a check skips a log that is still being worked on.
func (n *node) step(what string, holds func() bool) {
	n.t.Helper()
	n.eventually(what, func() bool {
		if holds() {
			return true
		}
		n.clock.Step(interval)
		return holds()
	})
}

// names returns the names of the files of a container; rotated files are shown by their number and kind, for example
// "0.log", "gz".
func (n *node) names(id string) []string {
	entries, err := os.ReadDir(filepath.Join(n.dir, id))
	if err != nil {
		return []string{err.Error()}
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// kinds returns the kinds of a container's files: "log" for the current one, "old" for a rotated one, "gz", "tmp".
func (n *node) kinds(id string) string { return kindsOf(n.names(id)) }

func kindsOf(names []string) string {
	var kinds []string
	for _, name := range names {
		switch {
		case name == "0.log":
			kinds = append(kinds, "log")
		case strings.HasSuffix(name, ".gz"):
			kinds = append(kinds, "gz")
		case strings.HasSuffix(name, ".tmp"):
			kinds = append(kinds, "tmp")
		default:
			kinds = append(kinds, "old")
		}
	}
	return strings.Join(kinds, " ")
}

func (n *node) has(id, kinds string) func() bool {
	return func() bool { return n.kinds(id) == kinds }
}

// wantLines reads the log of a container and compares it with all lines from one on, in order.
func (n *node) wantLines(c *container, from int) {
	n.t.Helper()
	var out, want bytes.Buffer
	if err := containerlog.Read(n.t.Context(), c.path, containerlog.Options{Tail: -1}, &out); err != nil {
		n.t.Fatal(err)
	}
	for i := from; i < c.written; i++ {
		fmt.Fprintf(&want, "%06d\n", i)
	}
	if out.String() != want.String() {
		n.t.Errorf("got %d lines, want %d", strings.Count(out.String(), "\n"), c.written-from)
	}
}

var policy = logrotate.Policy{MaxSize: 10 * lineBytes, MaxFiles: 4}
