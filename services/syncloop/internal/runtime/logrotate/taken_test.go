package logrotate_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/containerlog"
	"github.com/quartet-node/quartet/test/require"
)

// checkOnce runs the rotator for one check, and waits for the end of what it does.
func (n *node) checkOnce() {
	n.t.Helper()
	stop := n.start(policy)
	n.mu.Lock()
	n.checks = 0
	n.mu.Unlock()
	n.clock.Step(interval)
	n.eventually("the logs are checked", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.checks > 0
	})
	stop()
}

// TestARotatedFileIsNotReplaced: a file that was rotated in the same second keeps its lines. There is one if the clock
// was set back or the process before was killed. The log is rotated by a later check.
func TestARotatedFileIsNotReplaced(t *testing.T) {
	for _, compressed := range []bool{false, true} {
		n := newNode(t)
		c := n.add("c")
		c.write(3)
		rotated := containerlog.RotatedPath(c.path, n.clock.Now().Add(interval)) // the time of the check
		if compressed {
			lines, err := os.ReadFile(c.path)
			require.NoError(t, err)
			var buf bytes.Buffer
			zip := gzip.NewWriter(&buf)
			_, err = zip.Write(lines)
			require.NoError(t, errors.Join(err, zip.Close(), os.Remove(c.path)))
			require.NoError(t, os.WriteFile(containerlog.CompressedPath(rotated), buf.Bytes(), 0o600))
		} else {
			require.NoError(t, os.Rename(c.path, rotated))
		}
		c.reopen()
		c.write(12)
		before, err := os.Stat(c.path)
		require.NoError(t, err)

		n.checkOnce()
		if after, err := os.Stat(c.path); err != nil || !os.SameFile(before, after) {
			t.Errorf("compressed: %t: the log was rotated to %s, which exists: there is %v", compressed, rotated, n.names("c"))
		}
		n.wantLines(c, 0)
		stop := n.start(policy)
		n.step("the log is rotated", n.has("c", "log gz old"))
		stop()
		n.wantLines(c, 0)
	}
}

// TestALogIsNotRotatedOverWhatIsNotKnown has a log whose name is so long that the kernel refuses the name of its
// compressed form: whether that exists is not known.
func TestALogIsNotRotatedOverWhatIsNotKnown(t *testing.T) {
	const longest = 255
	n := newNode(t)
	dir := filepath.Join(n.dir, "c")
	require.NoError(t, os.Mkdir(dir, 0o700))
	stamp := len(containerlog.RotatedPath("", n.clock.Now()))
	c := &container{t: t, path: filepath.Join(dir, strings.Repeat("l", longest-stamp))}
	c.reopen()
	n.containers["c"] = c
	c.write(12)
	n.checkOnce()
	if names := n.names("c"); len(names) != 1 {
		t.Errorf("the log was rotated: there is %q", names)
	}
	n.wantLines(c, 0)
}
