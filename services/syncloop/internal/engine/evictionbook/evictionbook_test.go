package evictionbook_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEvictionsAreKeptOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	book := open(t, path)
	first := podstore.Eviction{Reason: "Evicted", Message: "memory"}
	for uid, e := range map[types.UID]podstore.Eviction{"u1": first, "u2": {Reason: "Preempting"}} {
		book.Put(uid, e)
	}
	book.Put("u1", podstore.Eviction{Reason: "Later"})
	book.Delete("u2")
	book.Delete("u3")
	again := open(t, path)
	if got, ok := again.Get("u1"); !ok || got != first {
		t.Errorf("Get(u1) = %v, %v, want true and %v", got, ok, first)
	}
	if got := again.UIDs(); !slices.Equal(got, []types.UID{"u1"}) {
		t.Errorf("UIDs() = %v, want %v", got, []types.UID{"u1"})
	}
}

// TestTheLastStatusIsKeptOverARestart checks that the last status is kept with the reason of the eviction, and that the
// first one counts. A pod that is not in the book is added only on request.
func TestTheLastStatusIsKeptOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	book := open(t, path)
	book.Put("evicted", podstore.Eviction{Reason: "Evicted", Discard: true})
	ended := func(message string) *v1.PodStatus { return &v1.PodStatus{Phase: v1.PodFailed, Message: message} }
	for _, test := range []struct {
		uid       types.UID
		last      string
		add, kept bool
	}{{"evicted", "first", false, true}, {"evicted", "second", true, true}, {"completed", "first", true, true}, {"static", "first", false, false}} {
		if kept, err := book.SetLast(test.uid, ended(test.last), test.add); err != nil || kept != test.kept {
			t.Errorf("%s: kept is %v, %v, want %v", test.uid, kept, err, test.kept)
		}
	}
	again := open(t, path)
	for uid, reason := range map[types.UID]string{"evicted": "Evicted", "completed": ""} {
		if got, ok := again.Get(uid); !ok || got.Reason != reason || got.Last == nil || got.Last.Message != "first" {
			t.Errorf("%s: Get() = %+v, %v, want true, Reason %v, Last set and Last.Message %q", uid, got, ok, reason, "first")
		}
	}
	if got := again.UIDs(); !slices.Equal(got, []types.UID{"completed", "evicted"}) {
		t.Errorf("UIDs() = %v, want %v", got, []types.UID{"completed", "evicted"})
	}
}

// TestADamagedBookIsSetAsideAndWhatItShowsCounts damages the file in each way. The entries before the damage count.
func TestADamagedBookIsSetAsideAndWhatItShowsCounts(t *testing.T) {
	good := `{"u1": {"reason": "Evicted", "message": "memory"}, "u2": {"reason": "Evicted"}}`
	second := strings.Index(good, `"u2"`)
	for name, test := range map[string]struct {
		text string
		want []types.UID
	}{
		"empty":               {"", nil},
		"zeros":               {strings.Repeat("\x00", len(good)), nil},
		"garbage":             {"\xff\x00{]", nil},
		"a list":              {"[1, 2]", nil},
		"truncated":           {good[:second+10], []types.UID{"u1"}},
		"a number as reason":  {good[:second] + `"u2": {"reason": 3}}`, []types.UID{"u1"}},
		"something after it":  {good + "}", []types.UID{"u1", "u2"}},
		"the first is broken": {`{"u1": {"reason"`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "evictions.json")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			book := evictionbook.Open(evictionbook.Config{
				Path: path, Clock: clock.RealClock{}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			if got := book.UIDs(); !slices.Equal(got, test.want) {
				t.Errorf("UIDs() = %v, want %v", got, test.want)
			}
			if err := book.Close(); err != nil {
				t.Error(err)
			}
			if aside, err := os.ReadFile(path + ".damaged"); err != nil || string(aside) != test.text {
				t.Errorf("the damaged file has %q, %v, want its old content", aside, err)
			}
			if !strings.Contains(log.String(), path+".damaged") {
				t.Errorf("the log does not name the damaged file:\n%s", &log)
			}
			if got := open(t, path).UIDs(); !slices.Equal(got, test.want) {
				t.Errorf("after another restart UIDs() = %v, want %v", got, test.want)
			}
		})
	}
}

// TestADamagedBookThatCannotBeRenamedCounts: on a disk that fails, what the file shows counts from where it is.
func TestADamagedBookThatCannotBeRenamedCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	text := `{"u1": {"reason": "Evicted"}, "u2": {"reason":`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Directories, which a file does not replace, have all names that a damaged file may get.
	for i := range 10 {
		aside := fmt.Sprintf("%s.%d.damaged", path, i)
		if i == 0 {
			aside = path + ".damaged"
		}
		if err := os.Mkdir(aside, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, start := range []string{"the first start", "the second start"} {
		if got, want := open(t, path).UIDs(), []types.UID{"u1"}; !slices.Equal(got, want) {
			t.Errorf("at %s UIDs() = %v, want %v", start, got, want)
		}
	}
}

// TestAnEarlierVersionReadsTheBook: it takes the field with the checksum for an eviction of another boot, and drops it.
// What it writes has no checksum, and counts.
func TestAnEarlierVersionReadsTheBook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	open(t, path).Put("u1", podstore.Eviction{Reason: "Evicted"})
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var earlier map[types.UID]struct{ Reason, Boot string }
	require.NoError(t, json.Unmarshal(data, &earlier))
	for uid, e := range earlier {
		if known, dropped := uid == "u1" && e.Reason == "Evicted", e.Boot != "" && e.Boot != "one"; known == dropped {
			t.Errorf("an earlier version has %s %+v, want the eviction alone", uid, e)
		}
	}
	require.NoError(t, os.WriteFile(path, []byte(`{"u2": {"reason": "Evicted"}}`), 0o600))
	if got := open(t, path).UIDs(); !slices.Equal(got, []types.UID{"u2"}) {
		t.Errorf("UIDs() = %v, want what the earlier version has written", got)
	}
}

// TestAChangedBookIsSetAsideAndCounts: its checksum shows that a UID has changed, so that an evicted pod may start.
func TestAChangedBookIsSetAsideAndCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	book := open(t, path)
	book.Put("u1", podstore.Eviction{Reason: "Evicted"})
	book.Put("u2", podstore.Eviction{Reason: "Evicted"})
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(data, []byte(`"u2"`), []byte(`"u3"`), 1), 0o600))
	if got := open(t, path).UIDs(); !slices.Equal(got, []types.UID{"u1", "u3"}) {
		t.Errorf("UIDs() = %v, want what the file has", got)
	}
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Errorf("the changed file is not set aside: %v", err)
	}
}

// TestABookThatCannotBeReadIsNeitherEmptyNorReplaced has each read of the file fail with an I/O error until the disk is
// well. What was evicted and forgotten meanwhile counts, and so does what is in the file.
func TestABookThatCannotBeReadIsNeitherEmptyNorReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "evictions.json")
		require.NoError(t, os.Symlink("/proc/self/mem", path)) // of which no read at offset 0 succeeds
		book := openInBoot(t, path, "one")
		if err := book.Unread(); !errors.Is(err, unix.EIO) {
			t.Fatalf("Unread() = %v, want %v", err, unix.EIO)
		}
		book.Put("new", podstore.Eviction{Reason: "Evicted"})
		book.Delete("gone")
		if _, err := book.SetLast("new", &v1.PodStatus{}, false); err == nil {
			t.Error("SetLast() succeeds, want an error because it is not on disk")
		}
		time.Sleep(time.Minute)
		if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSymlink {
			t.Fatalf("the file was replaced: %v, %v", info, err)
		}
		require.NoError(t, os.Remove(path))
		old := `{"old": {"reason": "Evicted"}, "gone": {"reason": "Evicted"}, "booted": {"reason": "Terminated", "boot": "two"}}`
		require.NoError(t, os.WriteFile(path, []byte(old), 0o600))
		time.Sleep(time.Minute)
		if err := book.Unread(); err != nil {
			t.Errorf("with a well disk Unread() = %v", err)
		}
		want := []types.UID{"new", "old"}
		if got := book.UIDs(); !slices.Equal(got, want) {
			t.Errorf("UIDs() = %v, want %v", got, want)
		}
		if got := openInBoot(t, path, "one").UIDs(); !slices.Equal(got, want) {
			t.Errorf("after a restart UIDs() = %v, want %v", got, want)
		}
	})
}

// TestAnEvictionCountsOnAFullDisk evicts a pod on a full disk with and without a reserve. It counts at once. With the
// reserve it is on disk at once, otherwise when there is room.
func TestAnEvictionCountsOnAFullDisk(t *testing.T) {
	for _, reserved := range []bool{true, false} {
		t.Run(fmt.Sprintf("reserve %v", reserved), func(t *testing.T) {
			dir := smallDisk(t)
			cfg := evictionbook.Config{
				Path: filepath.Join(dir, "evictions.json"), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
			}
			if reserved {
				var err error
				if cfg.Reserve, err = statedir.NewReserve(filepath.Join(dir, "reserve")); err != nil {
					t.Fatal(err)
				}
			}
			book := evictionbook.Open(cfg)
			ballast := fill(t, dir)
			book.Put("u1", podstore.Eviction{Reason: "Evicted", Message: "the disk is full"})
			if _, ok := book.Get("u1"); !ok {
				t.Error("the eviction does not count")
			}
			if kept, err := book.SetLast("u1", &v1.PodStatus{Phase: v1.PodFailed}, false); (err == nil) != reserved || kept != reserved {
				t.Errorf("SetLast() = %v, %v, want success only with a reserve", kept, err)
			}
			_, err := os.Stat(cfg.Path)
			if onDisk := err == nil; onDisk != reserved {
				t.Errorf("the book is on disk: %v, want %v", onDisk, reserved)
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			eventually.That(t, "the eviction is on disk with the last status", func() bool {
				data, err := os.ReadFile(cfg.Path)
				return err == nil && strings.Contains(string(data), string(v1.PodFailed))
			})
			if err := book.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAnEvictionOutlivesAKillWhileTheDiskIsReadOnly opens the book again while its disk is read-only. When the disk is
// well, the book is there, and the spare file is not.
func TestAnEvictionOutlivesAKillWhileTheDiskIsReadOnly(t *testing.T) {
	dir, spare := smallDisk(t), filepath.Join(t.TempDir(), "evictions.json")
	cfg := evictionbook.Config{
		Path: filepath.Join(dir, "evictions.json"), Spare: spare, Node: "n", Clock: clock.RealClock{},
		Logger: slog.New(slog.DiscardHandler),
	}
	openAgain := func() *evictionbook.Book {
		book := evictionbook.Open(cfg)
		t.Cleanup(func() {
			if err := book.Close(); err != nil {
				t.Error(err)
			}
		})
		return book
	}
	book := openAgain()
	book.Put("before", podstore.Eviction{Reason: "Evicted"})
	book.Put("gone", podstore.Eviction{Reason: "Evicted"})
	if _, err := os.Stat(spare); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("on a disk that is well there is a spare file: %v", err)
	}
	remount(t, dir, unix.MS_RDONLY)
	book.Put("meanwhile", podstore.Eviction{Reason: "Evicted", Message: "memory"})
	book.Delete("gone")
	want := []types.UID{"before", "meanwhile"}
	if got := openAgain().UIDs(); !slices.Equal(got, want) {
		t.Errorf("after a restart UIDs() = %v, want %v", got, want)
	}
	remount(t, dir, 0)
	eventually.That(t, "the book is on the disk alone", func() bool {
		data, err := os.ReadFile(cfg.Path)
		_, missing := os.Stat(spare)
		return err == nil && strings.Contains(string(data), "meanwhile") && errors.Is(missing, os.ErrNotExist)
	})
}

// TestADamagedSpareFileCountsForNothing checks that the book counts, and that the next change removes the spare file.
func TestADamagedSpareFileCountsForNothing(t *testing.T) {
	dir := t.TempDir()
	path, spare := filepath.Join(dir, "evictions.json"), filepath.Join(dir, "spare")
	good := []byte(`{"u1": {"reason": "Evicted"}}`)
	require.NoError(t, errors.Join(os.WriteFile(path, good, 0o600), os.WriteFile(spare, good[:9], 0o600)))
	book := evictionbook.Open(evictionbook.Config{
		Path: path, Spare: spare, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	if got := book.UIDs(); !slices.Equal(got, []types.UID{"u1"}) {
		t.Errorf("UIDs() = %v, want those of the book", got)
	}
	book.Put("u2", podstore.Eviction{Reason: "Evicted"})
	if _, err := os.Stat(spare); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the spare file is there: %v", err)
	}
	if err := book.Close(); err != nil {
		t.Error(err)
	}
}

func remount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""); err != nil {
		t.Fatal(err)
	}
}

// smallDisk returns a directory with a file system of 1 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill fills the disk of a directory and returns the file that fills it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	err := os.WriteFile(path, make([]byte, 2<<20), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v, want %v", err, unix.ENOSPC)
	}
	return path
}

func TestWhatCountsForOneBootIsForgottenInTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	book := open(t, path)
	book.Put("before", podstore.Eviction{Reason: "Evicted"})
	book.PutAll(map[types.UID]podstore.Eviction{"before": {Reason: "Terminated"}, "for-ever": {Reason: "Terminated"}, "static": {Reason: "Terminated", Boot: "one"}})
	for _, test := range []struct {
		boot string
		want []types.UID
	}{{"one", []types.UID{"before", "for-ever", "static"}}, {"two", []types.UID{"before", "for-ever"}}} {
		again := openInBoot(t, path, test.boot)
		if got := again.UIDs(); !slices.Equal(got, test.want) {
			t.Errorf("in boot %s there are %v, want %v", test.boot, got, test.want)
		}
		if e, _ := again.Get("before"); e.Reason != "Evicted" {
			t.Errorf("the first eviction has become %v, want Reason %q", e, "Evicted")
		}
	}
	eventually.That(t, "it is no longer on disk", func() bool {
		data, err := os.ReadFile(path)
		return err == nil && !strings.Contains(string(data), `"static"`)
	})
}

// open opens the book in the boot "one".
func open(t *testing.T, path string) *evictionbook.Book {
	t.Helper()
	return openInBoot(t, path, "one")
}

// openInBoot opens the book, and closes it at the end of the test.
func openInBoot(t *testing.T, path, boot string) *evictionbook.Book {
	t.Helper()
	book := evictionbook.Open(evictionbook.Config{
		Path: path, Boot: boot, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(func() {
		if err := book.Close(); err != nil {
			t.Error(err)
		}
	})
	return book
}
