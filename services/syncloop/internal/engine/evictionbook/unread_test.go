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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

// unreadConfig is that of a book that cannot be read, with a spare file on another disk.
func unreadConfig(t *testing.T) evictionbook.Config {
	t.Helper()
	cfg := evictionbook.Config{
		Path: filepath.Join(t.TempDir(), "evictions.json"), Spare: filepath.Join(t.TempDir(), "evictions.json"),
		Node: "n", Boot: "one", Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	}
	require.NoError(t, os.Symlink("/proc/self/mem", cfg.Path)) // of which no read at offset 0 succeeds
	return cfg
}

// openBook opens a book, which is closed at the end of the test.
func openBook(t *testing.T, cfg evictionbook.Config) *evictionbook.Book {
	t.Helper()
	book := evictionbook.Open(cfg)
	t.Cleanup(func() {
		if err := book.Close(); err != nil {
			t.Error(err)
		}
	})
	return book
}

// TestAnEvictionOutlivesAKillWhileTheBookCannotBeRead opens the book again, as a syncloop that was killed does, while
// no read of it succeeds. When the disk is well, it has what was in it and what was added, and the other file is gone.
func TestAnEvictionOutlivesAKillWhileTheBookCannotBeRead(t *testing.T) {
	cfg := unreadConfig(t)
	openBook(t, cfg).PutAll(map[types.UID]podstore.Eviction{
		"meanwhile": {Reason: "Evicted", Message: "memory"}, "static": {Reason: "Terminated", Boot: "two"},
	})
	again := openBook(t, cfg)
	if err := again.Unread(); !errors.Is(err, unix.EIO) {
		t.Fatalf("Unread() = %v, want %v", err, unix.EIO)
	}
	if e, known := again.Get("meanwhile"); !known || e.Message != "memory" {
		t.Fatalf("after a kill the book has %v", again.UIDs())
	}
	if _, known := again.Get("static"); known {
		t.Error("an eviction that is valid for another boot counts")
	}
	again.Put("later", podstore.Eviction{Reason: "Evicted"})

	require.NoError(t, os.Remove(cfg.Path))
	require.NoError(t, os.WriteFile(cfg.Path, []byte(`{"before": {"reason": "Evicted"}}`), 0o600))
	well := openBook(t, cfg)
	want := []types.UID{"before", "later", "meanwhile"}
	if got := well.UIDs(); well.Unread() != nil || !slices.Equal(got, want) {
		t.Errorf("with a well disk UIDs() = %v, Unread() = %v, want %v and none", got, well.Unread(), want)
	}
	eventually.That(t, "the book is on the disk alone", func() bool {
		data, err := os.ReadFile(cfg.Path)
		left, dirErr := os.ReadDir(filepath.Dir(cfg.Spare))
		return err == nil && strings.Contains(string(data), "later") && dirErr == nil && len(left) == 0
	})
}

// TestAnEvictionOutlivesAKillWhileReadsHang: the first read of the book fails, and the next ones do not end. They are
// those of a pipe without a writer.
func TestAnEvictionOutlivesAKillWhileReadsHang(t *testing.T) {
	cfg := unreadConfig(t)
	book := openBook(t, cfg)
	require.NoError(t, os.Remove(cfg.Path))
	require.NoError(t, unix.Mkfifo(cfg.Path, 0o600))
	book.Put("first", podstore.Eviction{Reason: "Evicted"})  // reads again, and hangs
	book.Put("second", podstore.Eviction{Reason: "Evicted"}) // is kept beside it
	eventually.That(t, "both are kept", func() bool {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(cfg.Spare), "*"))
		if err != nil || len(files) != 1 {
			return false
		}
		data, err := os.ReadFile(files[0])
		return err == nil && strings.Contains(string(data), `"second"`)
	})
	pipe, err := os.OpenFile(cfg.Path, os.O_WRONLY, 0) // lets the read end, which finds nothing
	require.NoError(t, err)
	require.NoError(t, errors.Join(os.Remove(cfg.Path), pipe.Close()))
	again := openBook(t, cfg)
	if got, want := again.UIDs(), []types.UID{"first", "second"}; !slices.Equal(got, want) {
		t.Errorf("after a kill UIDs() = %v, want %v", got, want)
	}
}

// TestADamagedRecordOfThatTimeCountsForNothing checks that the book counts.
func TestADamagedRecordOfThatTimeCountsForNothing(t *testing.T) {
	cfg := unreadConfig(t)
	openBook(t, cfg).Put("meanwhile", podstore.Eviction{Reason: "Evicted"})
	files, err := filepath.Glob(filepath.Join(filepath.Dir(cfg.Spare), "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the evictions of that time are in %v (%v), want one file", files, err)
	}
	require.NoError(t, os.Truncate(files[0], 9))
	require.NoError(t, os.Remove(cfg.Path))
	require.NoError(t, os.WriteFile(cfg.Path, []byte(`{"before": {"reason": "Evicted"}}`), 0o600))
	if got := openBook(t, cfg).UIDs(); !slices.Equal(got, []types.UID{"before"}) {
		t.Errorf("UIDs() = %v, want those of the book", got)
	}
}
