package evictionbook_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
	"github.com/quartet-node/quartet/test/require"
)

// inFile is a book of before: one pod was deleted while it could not be read.
const inFile = `{"old": {"reason": "Evicted"}, "gone": {"reason": "Evicted"}}`

// TestAnEvictionOutlivesAKillWhileTheBookCannotBeRead evicts pods while each read of the book fails with an I/O error,
// and opens it twice again meanwhile, as after a kill. With the disk well, all evictions are in the file, and the spare
// file is gone.
func TestAnEvictionOutlivesAKillWhileTheBookCannotBeRead(t *testing.T) {
	cfg, log := spared(t)
	require.NoError(t, os.Symlink("/proc/self/mem", cfg.Path)) // of which no read at offset 0 succeeds
	first := evictionbook.Open(cfg)
	first.Put("new", podstore.Eviction{Reason: "Evicted", Message: "memory"})
	first.Delete("gone")
	killed(t, cfg, first)
	if !strings.Contains(log.String(), cfg.Spare) {
		t.Errorf("the log does not say that evictions are in %s:\n%s", cfg.Spare, log.String())
	}

	second := evictionbook.Open(cfg)
	if err := second.Unread(); !errors.Is(err, unix.EIO) {
		t.Errorf("after a kill Unread() = %v, want %v", err, unix.EIO)
	}
	if e, ok := second.Get("new"); !ok || e.Message != "memory" {
		t.Errorf("after a kill Get(new) = %v, %v, want the eviction", e, ok)
	}
	second.Put("later", podstore.Eviction{Reason: "Evicted"})
	killed(t, cfg, second)

	require.NoError(t, os.Remove(cfg.Path))
	require.NoError(t, os.WriteFile(cfg.Path, []byte(inFile), 0o600))
	third := reopened(t, cfg)
	want := []types.UID{"later", "new", "old"}
	if got := third.UIDs(); !slices.Equal(got, want) || third.Unread() != nil {
		t.Errorf("with a well disk UIDs() = %v, %v, want %v", got, third.Unread(), want)
	}
	eventually.That(t, "the spare file is removed", func() bool { return isMissing(cfg.Spare) })
	cfg.Spare = ""
	if got := reopened(t, cfg).UIDs(); !slices.Equal(got, want) {
		t.Errorf("the file has %v, want %v", got, want)
	}
}

// TestABookWhoseReadHangsDelaysNoStart opens a book that cannot be opened until somebody writes to it. Evictions of
// this time are in the spare file, and in the file when the read has ended.
func TestABookWhoseReadHangsDelaysNoStart(t *testing.T) {
	cfg, log := spared(t)
	require.NoError(t, unix.Mkfifo(cfg.Path, 0o600))
	book := evictionbook.Open(cfg)
	if err := book.Unread(); !errors.Is(err, statedir.ErrHangs) || !strings.Contains(err.Error(), cfg.Path) {
		t.Errorf("Unread() = %v, want that the disk does not answer, and the file", err)
	}
	if !strings.Contains(log.String(), cfg.Path) {
		t.Errorf("the log does not name the file:\n%s", log.String())
	}
	book.Put("new", podstore.Eviction{Reason: "Evicted"})
	book.Delete("gone")
	if _, err := book.SetLast("new", &v1.PodStatus{}, false); err == nil {
		t.Error("SetLast() succeeds, want an error because it is not on disk")
	}
	// A process that starts when the disk is well has this spare file.
	next := cfg
	next.Path, next.Spare = filepath.Join(t.TempDir(), "evictions.json"), cfg.Spare+".copy"
	data, err := os.ReadFile(cfg.Spare)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(next.Spare, data, 0o600))
	require.NoError(t, os.WriteFile(next.Path, []byte(inFile), 0o600))
	want := []types.UID{"new", "old"}
	if got := reopened(t, next).UIDs(); !slices.Equal(got, want) {
		t.Errorf("after a kill UIDs() = %v, want %v", got, want)
	}

	require.NoError(t, os.WriteFile(cfg.Path, []byte(inFile), 0o600))
	eventually.That(t, "the book is on the disk alone", func() bool {
		return book.Unread() == nil && isFile(cfg.Path) && isMissing(cfg.Spare)
	})
	if got := book.UIDs(); !slices.Equal(got, want) {
		t.Errorf("UIDs() = %v, want %v", got, want)
	}
	require.NoError(t, book.Close())
}

// TestASpareFileThatCannotBeReadIsNotReplaced: it may have evictions that are nowhere else.
func TestASpareFileThatCannotBeReadIsNotReplaced(t *testing.T) {
	cfg, _ := spared(t)
	require.NoError(t, os.Symlink("/proc/self/mem", cfg.Spare))
	require.NoError(t, os.WriteFile(cfg.Path, []byte(inFile), 0o600))
	book := reopened(t, cfg)
	if err := book.Unread(); !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), cfg.Spare) {
		t.Errorf("Unread() = %v, want %v and the file", err, unix.EIO)
	}
	book.Put("new", podstore.Eviction{Reason: "Evicted"})
	if info, err := os.Lstat(cfg.Spare); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the spare file was replaced: %v, %v", info, err)
	}
	require.NoError(t, os.Remove(cfg.Spare))
	eventually.That(t, "the book is complete", func() bool { return book.Unread() == nil })
	if got, want := book.UIDs(), []types.UID{"gone", "new", "old"}; !slices.Equal(got, want) {
		t.Errorf("UIDs() = %v, want %v", got, want)
	}
}

// spared returns the configuration of a book with a spare file in another directory, and its log.
func spared(t *testing.T) (evictionbook.Config, *logbuffer.Buffer) {
	t.Helper()
	var log logbuffer.Buffer
	return evictionbook.Config{
		Path: filepath.Join(t.TempDir(), "evictions.json"), Spare: filepath.Join(t.TempDir(), "evictions.json"),
		Node: "n", Clock: clock.RealClock{}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}, &log
}

// killed ends a book so that its end writes nothing.
func killed(t *testing.T, cfg evictionbook.Config, book *evictionbook.Book) {
	t.Helper()
	before, err := os.ReadFile(cfg.Spare)
	require.NoError(t, err)
	require.NoError(t, book.Close())
	require.NoError(t, os.WriteFile(cfg.Spare, before, 0o600))
}

// reopened opens a book, and closes it at the end of the test.
func reopened(t *testing.T, cfg evictionbook.Config) *evictionbook.Book {
	t.Helper()
	book := evictionbook.Open(cfg)
	t.Cleanup(func() {
		if err := book.Close(); err != nil {
			t.Error(err)
		}
	})
	return book
}

func isMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist)
}

func isFile(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular()
}
