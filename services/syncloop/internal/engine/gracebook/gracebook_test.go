package gracebook_test

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/test/eventually"
)

// machine is a machine with a clock that the test sets.
type machine struct {
	t    *testing.T
	dir  string
	boot string
	now  time.Duration
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, dir: filepath.Join(t.TempDir(), "endings"), boot: "first", now: time.Hour}
}

// open opens the book as a starting process does.
func (m *machine) open() *gracebook.Book {
	m.t.Helper()
	return gracebook.Open(gracebook.Config{
		Dir: m.dir, Boot: m.boot, Now: func() time.Duration { return m.now }, Logger: slog.New(slog.DiscardHandler),
	})
}

func (m *machine) left(b *gracebook.Book, uid types.UID, grace, want int64) {
	m.t.Helper()
	if got, err := b.Left(uid, grace); err != nil || got != want {
		m.t.Errorf("%s with a grace period of %d s has %d s left (%v), want %d s", uid, grace, got, err, want)
	}
}

func TestARestartedProcessGivesWhatIsLeft(t *testing.T) {
	m := newMachine(t)
	m.left(m.open(), "a", 60, 60)
	m.now += 20 * time.Second
	b := m.open()
	if left, ok := b.Remaining("a"); !ok || left != 40 {
		t.Errorf("%d s left (%v), want 40 s", left, ok)
	}
	m.left(b, "a", 60, 40)
	m.now += time.Hour
	m.left(b, "a", 60, 1)
}

func TestAShorterPeriodTakesEffectAndALongerOneDoesNot(t *testing.T) {
	m := newMachine(t)
	b := m.open()
	m.left(b, "a", 60, 60)
	m.now += 1500 * time.Millisecond
	m.left(b, "a", 10, 10)
	m.left(b, "a", 300, 10)
	m.left(m.open(), "a", 300, 10)
}

// TestARecordThatCannotBeReadIsNotReplaced has each read of a pod's file fail with an I/O error until the disk is well.
// The grace period begins again meanwhile, because the pod must end; then the rest of the first one counts.
func TestARecordThatCannotBeReadIsNotReplaced(t *testing.T) {
	m := newMachine(t)
	b := m.open()
	m.left(b, "a", 60, 60)
	if err := b.NotePreStop("a", "one"); err != nil {
		t.Fatal(err)
	}
	m.now += 20 * time.Second
	file, good := filepath.Join(m.dir, "a.json"), filepath.Join(t.TempDir(), "good")
	if err := errors.Join(os.Rename(file, good), os.Symlink("/proc/self/mem", file)); err != nil {
		t.Fatal(err)
	}
	b = m.open()
	if left, err := b.Left("a", 60); left != 60 || !errors.Is(err, unix.EIO) {
		t.Errorf("without the record %d s are left, %v, want 60 s and %v", left, err, unix.EIO)
	}
	if info, err := os.Lstat(file); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Fatalf("the file was replaced: %v, %v", info, err)
	}
	if err := os.Rename(good, file); err != nil {
		t.Fatal(err)
	}
	m.left(b, "a", 60, 40)
	for name, b := range map[string]*gracebook.Book{"this process": b, "the next process": m.open()} {
		if left, _ := b.Remaining("a"); left != 40 || !b.PreStopped("a", "one") {
			t.Errorf("%s has %d s left, preStop ended %v, want 40 s and true", name, left, b.PreStopped("a", "one"))
		}
	}
}

func TestAPreStopHookThatHasEndedIsKnown(t *testing.T) {
	m := newMachine(t)
	b := m.open()
	if b.PreStopped("a", "one") {
		t.Error("a hook that never ran has ended")
	}
	for _, container := range []string{"one", "one", "two"} {
		if err := b.NotePreStop("a", container); err != nil {
			t.Error(err)
		}
	}
	for name, b := range map[string]*gracebook.Book{"this process": b, "the next process": m.open()} {
		if !b.PreStopped("a", "one") || !b.PreStopped("a", "two") || b.PreStopped("a", "three") || b.PreStopped("b", "one") {
			t.Errorf("%s does not know which hooks have ended", name)
		}
	}
	b = m.open()
	if _, ending := b.Remaining("a"); ending {
		t.Error("a pod with one stopped container counts as terminating")
	}
	for _, container := range []string{"one", "two", "three"} {
		if err := b.ForgetContainer("a", container); err != nil {
			t.Error(err)
		}
	}
	if got := m.open().UIDs(); len(got) != 0 {
		t.Errorf("%v is known once its containers are gone, want nothing", got)
	}
}

func TestAContainerThatIsReplacedIsKnown(t *testing.T) {
	m := newMachine(t)
	b := m.open()
	for range 2 {
		if err := b.NoteReplaced("a", "one"); err != nil {
			t.Error(err)
		}
	}
	for name, b := range map[string]*gracebook.Book{"this process": b, "the next process": m.open()} {
		if !b.Replaced("a", "one") || b.Replaced("a", "two") || b.Replaced("b", "one") || b.PreStopped("a", "one") {
			t.Errorf("%s does not know which containers are replaced", name)
		}
		if _, ending := b.Remaining("a"); ending {
			t.Errorf("for %s a pod with a replaced container is terminating", name)
		}
	}
	b = m.open()
	if err := b.ForgetContainer("a", "one"); err != nil {
		t.Error(err)
	}
	if got := m.open().UIDs(); len(got) != 0 || b.Replaced("a", "one") {
		t.Errorf("%v is known once the container is gone, want nothing", got)
	}
}

// TestAHookThatAnEarlierVersionHadBegun checks that a hook that an earlier version recorded at its start counts as not
// ended.
func TestAHookThatAnEarlierVersionHadBegun(t *testing.T) {
	m := newMachine(t)
	m.open()
	if err := os.WriteFile(filepath.Join(m.dir, "a.json"), []byte(`{"boot":"first","preStopped":["one"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if m.open().PreStopped("a", "one") {
		t.Error("an interrupted hook counts as ended")
	}
}

func TestAForgottenPodLeavesNoRecord(t *testing.T) {
	m := newMachine(t)
	b := m.open()
	m.left(b, "a", 60, 60)
	m.left(b, "b", 60, 60)
	for range 2 {
		if err := b.Forget("a"); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]types.UID{"b"}, m.open().UIDs()); diff != "" {
		t.Errorf("known (-want +got):\n%s", diff)
	}
}

func TestRecordsOfAnotherBootAreRemovedAndDamagedOnesSetAside(t *testing.T) {
	m := newMachine(t)
	m.left(m.open(), "a", 60, 60)
	for name, text := range map[string]string{"b.json": "{", "c.json.tmp": "{}", "d": "", "e.json": `{"boot":"other"}`} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]types.UID{"a"}, m.open().UIDs()); diff != "" {
		t.Errorf("known (-want +got):\n%s", diff)
	}
	m.boot = "second"
	if got := m.open().UIDs(); len(got) != 0 {
		t.Errorf("%v is known in the next boot, want nothing", got)
	}
	if files, err := os.ReadDir(m.dir); err != nil || len(files) != 1 || files[0].Name() != "b.json.damaged" {
		t.Errorf("%v (%v) is left, want only the damaged file", files, err)
	}
}

func TestADiskThatFailsEndsNoPodLater(t *testing.T) {
	m := newMachine(t)
	b := m.open()
	if err := errors.Join(os.Remove(m.dir), os.WriteFile(m.dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if left, err := b.Left("a", 60); left != 60 || err == nil {
		t.Errorf("%d s left and the error %v, want 60 s and an error", left, err)
	}
	m.now += 20 * time.Second
	if left, err := b.Left("a", 60); left != 40 || err == nil {
		t.Errorf("%d s left and the error %v, want 40 s and an error", left, err)
	}
	if err := os.Remove(m.dir); err != nil {
		t.Fatal(err)
	}
	m.left(b, "a", 60, 40)
	m.now += 10 * time.Second
	m.left(m.open(), "a", 60, 30)
}

// TestWithoutADirectoryTheBookBeginsEmpty has a file in the place of the directory at the start.
// TestADiskThatHangsEndsNoPodLater has a write of one pod's file wait for a reader, and then go on.
func TestADiskThatHangsEndsNoPodLater(t *testing.T) {
	m := newMachine(t)
	b := m.open()
	pipe := filepath.Join(m.dir, "a.json.tmp")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if left, err := b.Left("a", 60); left != 60 || !errors.Is(err, statedir.ErrHangs) {
		t.Errorf("%d s left (%v), want 60 s and %v", left, err, statedir.ErrHangs)
	}
	m.now += 20 * time.Second
	if left, ok := b.Remaining("a"); !ok || left != 40 {
		t.Errorf("%d s left (%v), want 40 s", left, ok)
	}
	m.left(b, "b", 60, 60)
	if err := b.NotePreStop("a", "c1"); !errors.Is(err, statedir.ErrHangs) {
		t.Errorf("the end of a hook: %v, want %v", err, statedir.ErrHangs)
	}

	reader, err := os.Open(pipe)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(reader); err != nil {
		t.Error(err)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
	eventually.That(t, "the last change is in the file", func() bool {
		// A pipe is in its place until the second write.
		info, err := os.Lstat(filepath.Join(m.dir, "a.json"))
		return err == nil && info.Mode().IsRegular()
	})
	again := m.open()
	if left, ok := again.Remaining("a"); !ok || left != 40 || !again.PreStopped("a", "c1") {
		t.Errorf("after a restart %d s left (%v), want 40 s, and the hook that has ended", left, ok)
	}
}

func TestWithoutADirectoryTheBookBeginsEmpty(t *testing.T) {
	m := newMachine(t)
	if err := os.WriteFile(m.dir, []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.left(m.open(), "a", 60, 60)
	m.now += 20 * time.Second
	m.left(m.open(), "a", 60, 40)
	if content, err := os.ReadFile(m.dir + ".damaged"); err != nil || string(content) != "in the way" {
		t.Errorf("the file that was in the way: %q, %v", content, err)
	}
}
