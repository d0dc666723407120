// Package harness gives tests the real parts: a containerd with the build's images, and a node of four processes on it.
// Each has its own directories, sockets and network, so that tests of several packages can run in parallel.
//
// A test skips with the reason when the machine lacks something that it needs; with CI=true it fails instead, so that a
// green run has run every test.
package harness

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

const (
	// HelloImage is a static program with the modes serve, init, crash, sleep, env and grow; images/hello documents them.
	HelloImage = bundle.HelloImage
	// PauseImage is the image of sandboxes.
	PauseImage = bundle.PauseImage

	// cleanupTimeout bounds the clean-up of a test.
	cleanupTimeout = 2 * time.Minute
	// removalGrace is the grace period of containers at the end of a test: none, because no test depends on their end
	// then.
	removalGrace = 0
)

// Containerd is a real container runtime for one test.
type Containerd struct {
	// StateDir has all files of the containerd, and of a node that runs on it.
	StateDir string
	// Layout has the paths below the state directory.
	Layout layout.Layout
	// Socket is the path of the CRI socket, Endpoint its address ("unix://" and the path).
	Socket, Endpoint string

	bundle *bundle.Bundle
}

// BinDir returns the directory of the build's binaries: QUARTET_BIN, else bin in the repository.
func BinDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("QUARTET_BIN"); dir != "" {
		return dir
	}
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("harness: the repository is not found: set QUARTET_BIN")
	}
	dir := filepath.Join(filepath.Dir(file), "..", "..", "bin")
	if filepath.IsAbs(dir) {
		return dir
	}
	// With -trimpath the file's name is relative to the module: look for bin from the package's directory upwards.
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; wd != "/"; wd = filepath.Dir(wd) {
		if _, err := os.Stat(filepath.Join(wd, "go.mod")); err == nil {
			return filepath.Join(wd, "bin")
		}
	}
	t.Fatal("harness: the repository is not found: set QUARTET_BIN")
	return ""
}

// ShortDir returns a directory for sockets: its path leaves room for their names, which that of t.TempDir with the name
// of the test may not. It is removed when the test ends.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "quartet-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Require skips a test when the machine lacks something, or fails it with CI=true.
func Require(t testing.TB, err error) {
	t.Helper()
	require.NoError(t, err)
}

// StartContainerd starts a containerd with the build's images, ready to run pods, and ends it with all its pods when
// the test ends.
func StartContainerd(t testing.TB) *Containerd {
	t.Helper()
	binDir := BinDir(t)
	Require(t, bundle.Preflight(binDir).Err())
	// Not t.TempDir: it would be removed while file systems are mounted in it, and its path is too long for sockets.
	dir, err := os.MkdirTemp("", "quartet-")
	if err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := &Containerd{
		StateDir: dir,
		Layout:   l,
		Socket:   l.RuntimeSocket(),
		Endpoint: l.RuntimeEndpoint(),
		bundle: bundle.New(bundle.Config{
			Layout: l,
			BinDir: binDir,
			Logger: slog.New(slog.DiscardHandler),
			Note:   func(note string) { t.Log("harness: " + note) },
		}),
	}
	t.Cleanup(func() { c.cleanUp(t) })
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := c.bundle.Prepare(); err != nil {
		t.Fatalf("harness: %v", err)
	}
	if err := c.bundle.Start(ctx); err != nil {
		t.Fatalf("harness: %v", err)
	}
	if err := c.bundle.ImportImages(ctx); err != nil {
		t.Fatalf("harness: %v", err)
	}
	return c
}

func (c *Containerd) cleanUp(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if c.PID() != 0 {
		if err := c.bundle.RemovePods(ctx, removalGrace); err != nil {
			t.Logf("harness: %v", err)
		}
	}
	if err := c.bundle.Stop(ctx); err != nil {
		t.Errorf("harness: %v", err)
	}
	if t.Failed() {
		if log, err := os.ReadFile(c.bundle.LogFile()); err == nil {
			t.Logf("harness: the end of containerd's log:\n%s", log[max(0, len(log)-4096):])
		}
	}
	if err := c.bundle.CleanUp(); err != nil {
		t.Errorf("harness: %v", err)
	}
	if err := os.RemoveAll(c.StateDir); err != nil {
		t.Errorf("harness: %v", err)
	}
}

// PID returns containerd's process id; 0 when it is not running.
func (c *Containerd) PID() int { return c.bundle.PID() }

// Kill ends containerd by SIGKILL and waits until it has ended. Its pods keep running.
func (c *Containerd) Kill(t testing.TB) {
	t.Helper()
	pid := c.PID()
	if pid == 0 {
		t.Fatal("harness: containerd is not running")
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatalf("harness: killing containerd: %v", err)
	}
	eventually.In(ctx, t, "containerd is gone", func() bool { return c.PID() == 0 })
}

// Prepare repeats the preparations for a start of containerd.
func (c *Containerd) Prepare(t testing.TB) {
	t.Helper()
	if err := c.bundle.Prepare(); err != nil {
		t.Fatalf("harness: %v", err)
	}
}

// Start starts containerd again after Kill and waits until it serves.
func (c *Containerd) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := c.bundle.Start(ctx); err != nil {
		t.Fatalf("harness: %v", err)
	}
}

// RemovePods removes every pod of the runtime in parallel, so that one containerd can serve several tests.
func (c *Containerd) RemovePods(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := c.bundle.RemovePods(ctx, removalGrace); err != nil {
		t.Fatalf("harness: %v", err)
	}
}
