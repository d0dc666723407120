package logrotate_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/logrotate"
	"github.com/quartet-node/quartet/test/harness"
)

const (
	testTimeout = 60 * time.Second
	interval    = 10 * time.Second
)

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
