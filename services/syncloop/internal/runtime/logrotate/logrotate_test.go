package logrotate_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/logrotate"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testTimeout = 60 * time.Second
	interval    = 10 * time.Second
)

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

func TestALogIsRotatedCompressedAndRemoved(t *testing.T) {
	n := newNode(t)
	c := n.add("c")
	stop := n.start(policy)
	defer stop()
	for i, want := range []string{"log old", "log gz old", "log gz gz old", "log gz gz old", "log gz gz old"} {
		c.write(12)
		before := n.names("c")
		n.step(want, func() bool {
			names := n.names("c")
			return kindsOf(names) == want && !slices.Equal(names, before)
		})
		n.wantLines(c, max(0, i+1-3)*12)
	}
	// Mode and time are those of the uncompressed file.
	name := n.names("c")[1]
	info, err := os.Stat(filepath.Join(n.dir, "c", name))
	if err != nil || info.Mode().Perm() != 0o640 || time.Since(info.ModTime()) > testTimeout {
		t.Errorf("%s: Stat() = %v, %v, want Mode.Perm 0o640 and Since at most %v", name, info, err, testTimeout)
	}
	left := n.names("c")
	if len(left) != policy.MaxFiles {
		t.Fatalf("there is %v, want %d entries", left, policy.MaxFiles)
	}
	if newest := left[3]; newest > "0.log."+n.clock.Now().Format("20060102-150405") || newest < "0.log."+time.Now().Format("20060102-150405") {
		t.Errorf("the newest has not the kubelet's name for its time: %s", newest)
	}
	c.write(9)
	n.clock.Step(interval)
	if got := n.kinds("c"); got != "log gz gz old" {
		t.Errorf("a small file: %s, want %q", got, "log gz gz old")
	}
}

// TestAKillBetweenAnyTwoStepsIsHealed creates the files that a kill leaves after each step, and starts again.
func TestAKillBetweenAnyTwoStepsIsHealed(t *testing.T) {
	const older, newer = ".20260501-100000", ".20260501-110000"
	rename := func(n *node, c *container, from, to string) {
		if err := os.Rename(c.path+from, c.path+to); err != nil {
			n.t.Fatal(err)
		}
	}
	copied := func(n *node, c *container, from, to string, whole bool) {
		data, err := os.ReadFile(c.path + from)
		if err != nil {
			n.t.Fatal(err)
		}
		var buf bytes.Buffer
		zip := gzip.NewWriter(&buf)
		_, err = zip.Write(data)
		if err := errors.Join(err, zip.Close()); err != nil {
			n.t.Fatal(err)
		}
		if !whole {
			buf.Truncate(buf.Len() / 2)
		}
		if err := os.WriteFile(c.path+to, buf.Bytes(), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name  string
		kill  func(n *node, c *container)
		ended bool
		want  string
	}{
		{"before anything", func(*node, *container) {}, false, "log gz old"},
		{"after the rename", func(n *node, c *container) { rename(n, c, "", newer) }, false, "log gz old"},
		{"after the rename, and the container has ended", func(n *node, c *container) { rename(n, c, "", newer) }, true, "log gz"},
		{"after the new file", func(n *node, c *container) { rename(n, c, "", newer); c.reopen() }, false, "log gz old"},
		{"while it compressed", func(n *node, c *container) {
			rename(n, c, "", newer)
			c.reopen()
			copied(n, c, older, older+".tmp", false)
		}, false, "log gz old"},
		{"before the compressed file had its name", func(n *node, c *container) {
			rename(n, c, "", newer)
			c.reopen()
			copied(n, c, older, older+".tmp", true)
		}, false, "log gz old"},
		{"before the file was removed that was compressed", func(n *node, c *container) {
			rename(n, c, "", newer)
			c.reopen()
			copied(n, c, older, older+".gz", true)
		}, false, "log gz old"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			c := n.add("c")
			c.write(12)
			rename(n, c, "", older)
			c.reopen()
			c.write(12)
			test.kill(n, c)
			n.ended["c"] = test.ended
			c.write(1) // to the file that the runtime has open
			n.look(policy, n.has("c", test.want))
			if !test.ended {
				c.write(3)
			}
			n.wantLines(c, 0)
			// A second time there is nothing to do.
			before := n.names("c")
			n.look(policy, func() bool { return true })
			if after := n.names("c"); !slices.Equal(before, after) {
				t.Errorf("a second time changes %v to %v", before, after)
			}
		})
	}
}

func TestARuntimeThatFailsKeepsItsFile(t *testing.T) {
	n := newNode(t)
	c := n.add("c")
	c.write(12)
	refusals := make(chan struct{}, 100)
	n.reopen = func(context.Context, string) error {
		refusals <- struct{}{}
		return errors.New("it will not")
	}
	stop := n.start(policy)
	defer stop()
	for range 3 {
		n.step("the runtime is asked", func() bool {
			select {
			case <-refusals:
				return true
			default:
				return false
			}
		})
		n.eventually("the file is in use again", n.has("c", "log"))
		c.write(1)
		n.wantLines(c, 0)
		n.eventually("the turn has ended", func() bool { return strings.Contains(n.log.String(), "it will not") })
	}
	if got := strings.Count(n.log.String(), "it will not"); got != 1 {
		t.Errorf("told %d times: %s, want 1", got, n.log)
	}
	n.mu.Lock()
	n.reopen = nil
	n.mu.Unlock()
	n.eventually("it is put aside in the end", func() bool {
		n.clock.Step(interval)
		return n.kinds("c") == "log old"
	})
	n.wantLines(c, 0)
}

func TestARuntimeThatReopensAndFailsLosesNothing(t *testing.T) {
	n := newNode(t)
	c := n.add("c")
	c.write(12)
	n.reopen = func(context.Context, string) error {
		c.reopen()
		c.write(1)
		return errors.New("the answer is lost")
	}
	n.look(policy, n.has("c", "log old"))
	n.wantLines(c, 0)
}

func TestARuntimeThatHangsDelaysThatLogOnly(t *testing.T) {
	n := newNode(t)
	hung, well := n.add("hung"), n.add("well")
	reached := make(chan struct{})
	n.reopen = func(ctx context.Context, id string) error {
		if id == "hung" {
			close(reached)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	hung.write(12)
	stop := n.start(policy)
	n.clock.Step(interval)
	<-reached
	for _, want := range []string{"log old", "log gz old", "log gz gz old"} {
		well.write(12)
		n.step("the other one: "+want, n.has("well", want))
	}
	if got := n.kinds("hung"); got != "old" {
		t.Errorf("while the removal hangs the runtime has %q, want %q", got, "old")
	}
	hung.write(3)
	stop() // the end of the process cancels the call, and the file is renamed back
	if got := n.kinds("hung"); got != "log" {
		t.Errorf("after that there is %q", got)
	}
	n.wantLines(hung, 0)
	n.wantLines(well, 0)
}

// TestAFollowerSeesEveryLine reads the log of a container that writes all the time while its log is rotated again and
// again.
func TestAFollowerSeesEveryLine(t *testing.T) {
	n := newNode(t)
	c := n.add("c")
	var got bytes.Buffer
	read, running := make(chan error, 1), make(chan struct{})
	c.write(5)
	go func() {
		read <- containerlog.Read(t.Context(), c.path, containerlog.Options{
			Tail: -1, Follow: true, Running: func(context.Context) (bool, error) {
				select {
				case <-running:
					return false, nil
				default:
					return true, nil
				}
			},
		}, &got)
	}()
	stop := n.start(logrotate.Policy{MaxSize: 10 * lineBytes, MaxFiles: 1 << 20})
	for i := range 20 {
		for range 50 {
			c.write(20)
		}
		files := len(n.names("c"))
		n.eventually(fmt.Sprintf("rotation %d", i), func() bool {
			n.clock.Step(interval)
			c.write(1)
			return len(n.names("c")) > files && !strings.Contains(n.kinds("c"), "tmp")
		})
	}
	stop()
	close(running)
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(got.String())
	for i := range c.written {
		if i >= len(lines) || lines[i] != fmt.Sprintf("%06d", i) {
			t.Fatalf("line %d of %d is not as it was written", i, c.written)
		}
	}
	n.wantLines(c, 0)
}

func TestAHundredContainers(t *testing.T) {
	n := newNode(t)
	var all []*container
	for i := range 100 {
		c := n.add(fmt.Sprintf("c%d", i))
		c.write(12)
		all = append(all, c)
	}
	n.look(policy, func() bool {
		for id := range n.containers {
			if n.kinds(id) != "log old" {
				return false
			}
		}
		return true
	})
	for _, c := range all {
		c.write(1)
		n.wantLines(c, 0)
	}
}

// TestAFullDisk rotates a log on a file system that is completely full, where nothing can be compressed.
func TestAFullDisk(t *testing.T) {
	n := newNode(t)
	n.dir = filepath.Join(n.dir, "disk")
	if err := os.Mkdir(n.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	harness.Require(t, unix.Mount("tmpfs", n.dir, "tmpfs", 0, "size=256k"))
	c := n.add("c")
	t.Cleanup(func() {
		// The log is open until the node's clean-up, which runs later.
		if err := unix.Unmount(n.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	stop := n.start(policy)
	defer stop()
	for _, want := range []string{"log old", "log gz old"} {
		c.write(12)
		n.step(want, n.has("c", want))
	}
	c.write(12)
	filler := filepath.Join(n.dir, "filler")
	// The write fails when the disk is full, as intended.
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	n.step("it is told", func() bool { return strings.Contains(n.log.String(), "no space left on device") })
	n.eventually("it is put aside, and nothing is left half done", n.has("c", "log gz old old"))
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	n.eventually("there is room", func() bool {
		c.write(12)
		n.clock.Step(interval)
		return n.kinds("c") == "log gz gz old"
	})
	if strings.Count(n.log.String(), "no space left on device") != 1 {
		t.Errorf("told: %s, want %q once", n.log, "no space left on device")
	}
}
