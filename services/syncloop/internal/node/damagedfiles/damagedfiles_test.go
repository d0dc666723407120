package damagedfiles_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/damagedfiles"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type counter struct{ events atomic.Int64 }

// NodeWarning implements the events of damagedfiles.Config.
func (c *counter) NodeWarning(_ context.Context, reason, message string) {
	if reason == "DamagedFile" && strings.Contains(message, ".damaged") || strings.Contains(message, ".corrupt") {
		c.events.Add(1)
	}
}

// TestADamagedFileIsReportedUntilItIsRemoved damages a file of the node, one of a pod, and a checkpoint of devices.
func TestADamagedFileIsReportedUntilItIsRemoved(t *testing.T) {
	stateDir, rootDir, clock := t.TempDir(), t.TempDir(), clocktesting.NewFakeClock(time.Now())
	file := func(parts ...string) string {
		path := filepath.Join(parts...)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
		return path
	}
	set := func(path string) {
		if err := statedir.SetAside(path, errors.New("damaged by the test")); err.Aside == "" {
			t.Fatal(err)
		}
	}
	set(file(stateDir, "evictions.json"))
	for _, pod := range []string{"a.json", "b.json"} {
		set(file(stateDir, "endings", pod))
	}
	file(rootDir, "device-plugins", "kubelet_internal_checkpoint.corrupt")
	file(stateDir, "resizes", "good.json")
	var events counter
	registry := prometheus.NewRegistry()
	r := damagedfiles.New(damagedfiles.Config{
		StateDir: stateDir, RootDir: rootDir, Events: &events, Clock: clock, Logger: slog.New(slog.DiscardHandler),
		Registry: registry,
	})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	shows := func(files, lines string) {
		t.Helper()
		want := "# HELP quartet_damaged_files Files of the node that were damaged and are set aside, until somebody removes them.\n" +
			"# TYPE quartet_damaged_files gauge\n" + lines
		if lines == "" {
			want = ""
		}
		eventually.That(t, "the reasons name "+files, func() bool {
			clock.Step(time.Minute / 10)
			all := strings.Join(r.Reasons(), "\n")
			for _, name := range strings.Fields(files) {
				if !strings.Contains(all, name) {
					return false
				}
			}
			return len(r.Reasons()) == len(strings.Fields(files))
		})
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
	shows("evictions.json a.json b.json kubelet_internal_checkpoint", `quartet_damaged_files{file="endings"} 2
quartet_damaged_files{file="evictions.json"} 1
quartet_damaged_files{file="kubelet_internal_checkpoint"} 1
`)
	if got := events.events.Load(); got != 4 {
		t.Errorf("%d events, want one of each file", got)
	}
	require.NoError(t, os.RemoveAll(filepath.Join(stateDir, "endings")))
	require.NoError(t, os.RemoveAll(filepath.Join(rootDir, "device-plugins")))
	shows("evictions.json", "quartet_damaged_files{file=\"evictions.json\"} 1\n")
	require.NoError(t, os.Remove(filepath.Join(stateDir, "evictions.json.damaged")))
	shows("", "")
	if got := events.events.Load(); got != 4 {
		t.Errorf("%d events at the end, want no further one", got)
	}
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestADirectoryThatCannotBeListedIsNotTakenForAnEmptyOne: it is a reason, and what lay in it counts on. A missing one
// is none.
func TestADirectoryThatCannotBeListedIsNotTakenForAnEmptyOne(t *testing.T) {
	stateDir, rootDir, clock := t.TempDir(), t.TempDir(), clocktesting.NewFakeClock(time.Now())
	endings, pulls := filepath.Join(stateDir, "endings"), filepath.Join(rootDir, "image_manager")
	require.NoError(t, os.Mkdir(endings, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(endings, "a.json.damaged"), nil, 0o600))
	var events counter
	registry := prometheus.NewRegistry()
	r := damagedfiles.New(damagedfiles.Config{
		StateDir: stateDir, RootDir: rootDir, Events: &events, Clock: clock, Logger: slog.New(slog.DiscardHandler),
		Registry: registry,
	})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	becomes := func(what string, reasons ...string) {
		t.Helper()
		eventually.That(t, what, func() bool {
			clock.Step(time.Minute / 10)
			got := r.Reasons()
			for i, reason := range reasons {
				if len(got) != len(reasons) || !strings.Contains(got[i], reason) {
					return false
				}
			}
			return len(got) == len(reasons)
		})
	}
	const metric = "# HELP quartet_damaged_files Files of the node that were damaged and are set aside, until somebody removes them.\n" +
		"# TYPE quartet_damaged_files gauge\nquartet_damaged_files{file=\"endings\"} 1\n"
	becomes("the file is reported", "a.json was damaged")
	for _, dir := range []string{endings, pulls} { // a link to itself, of which no read succeeds
		if dir == endings {
			require.NoError(t, os.Rename(endings, endings+"-aside"))
		}
		require.NoError(t, os.Symlink(filepath.Base(dir), dir))
	}
	becomes("the directories are reported, and the file", endings+" cannot be listed", pulls+" cannot be listed",
		"a.json was damaged")
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(metric)))
	require.NoError(t, os.Remove(pulls))
	require.NoError(t, os.Remove(endings))
	require.NoError(t, os.Rename(endings+"-aside", endings))
	becomes("the directories can be listed", "a.json was damaged")
	require.NoError(t, os.RemoveAll(endings))
	becomes("the directory is empty")
	if got := events.events.Load(); got != 1 {
		t.Errorf("%d events, want one of the file", got)
	}
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestAReadOnlyDiskIsAReasonUntilItIsWritable remounts a file system, as the kernel does by an error of its disk.
func TestAReadOnlyDiskIsAReasonUntilItIsWritable(t *testing.T) {
	require.Root(t, "a mount")
	dir, clock := t.TempDir(), clocktesting.NewFakeClock(time.Now())
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := damagedfiles.New(damagedfiles.Config{
		StateDir: dir, RootDir: dir, Events: &counter{}, Clock: clock, Logger: slog.New(slog.DiscardHandler),
		Registry: prometheus.NewRegistry(),
	})
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	eventually.That(t, "the read-only disk is a reason", func() bool {
		reasons := r.Reasons()
		return len(reasons) == 1 && strings.Contains(reasons[0], dir) && strings.Contains(reasons[0], "mount it writable")
	})
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "the writable disk is no reason", func() bool {
		clock.Step(time.Minute / 10)
		return len(r.Reasons()) == 0
	})
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
