package resizes_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
)

func open(t *testing.T, dir string) *resizes.Book {
	t.Helper()
	return resizes.Open(dir, "", slog.New(slog.DiscardHandler))
}

func allocation(cpu string) resize.Allocation {
	return resize.Of(podtest.Pod("u", podtest.Container(podtest.List("cpu", cpu), nil)))
}

func TestAPromiseOutlivesTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "resizes")
	book := open(t, dir)
	if _, ok := book.Get("u"); ok {
		t.Error("there is a record of a pod that was never resized")
	}
	pod := podtest.Pod("u", podtest.Container(podtest.List("cpu", "1"), nil))
	if err := book.Note("u", resize.Of(pod), func(r *resize.Record) { r.Allocated = allocation("2") }); err != nil {
		t.Fatal(err)
	}
	actuate := func(a *resize.Actuated) { a.Note(nil, "c", resize.Amounts{CPURequest: 2000}) }
	if err := book.Actuate(pod, actuate); err != nil {
		t.Fatal(err)
	}
	want, _ := book.Get("u")
	got, ok := open(t, dir).Get("u")
	if diff := cmp.Diff(want, got); diff != "" || !ok || !got.Allocated.Equal(allocation("2")) {
		t.Errorf("the next process has %+v\n%s", got, diff)
	}
	for range 2 {
		book.Forget("u")
		if err := book.Save("u"); err != nil {
			t.Fatalf("forgetting it, and again: %v", err)
		}
	}
	if _, ok := book.Get("u"); ok {
		t.Error("the record is still there")
	}
	if uids := open(t, dir).UIDs(); len(uids) > 0 {
		t.Errorf("there are still records of %v", uids)
	}
}

func TestAPodMayHaveAnyUID(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "resizes")
	uids := []types.UID{"a/../b", "..", "u.json", "%2e"}
	book := open(t, dir)
	for _, uid := range uids {
		if err := book.Note(uid, allocation("1"), func(r *resize.Record) { r.Allocated = allocation("2") }); err != nil {
			t.Errorf("%q: %v", uid, err)
		}
	}
	slices.Sort(uids)
	if got := open(t, dir).UIDs(); !slices.Equal(got, uids) {
		t.Errorf("there are records of %q, want %q", got, uids)
	}
}

func TestADamagedRecordIsSetAside(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "resizes")
	book := open(t, dir)
	for _, uid := range []types.UID{"cut", "empty", "good"} {
		if err := book.Note(uid, allocation("1"), func(r *resize.Record) { r.Allocated = allocation("2") }); err != nil {
			t.Fatal(err)
		}
	}
	damage := map[string]string{"cut.json": `{"allocated": {"contai`, "empty.json": `{}`}
	for name, content := range damage {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var logged bytes.Buffer
	book = resizes.Open(dir, "", slog.New(slog.NewTextHandler(&logged, nil)))
	if !slices.Equal(book.UIDs(), []types.UID{"good"}) || !book.Lost("cut") || !book.Lost("empty") || book.Lost("good") {
		t.Errorf("there are records of %v", book.UIDs())
	}
	if strings.Count(logged.String(), "is now "+dir) != 2 {
		t.Errorf("the log has\n%s\nwant %q 2 times", logged.String(), "is now "+dir)
	}
	for name, content := range damage {
		if kept, err := os.ReadFile(filepath.Join(dir, name+".damaged")); err != nil || string(kept) != content {
			t.Errorf("%s: ReadFile() = %q, %v, want %q", name, kept, err, content)
		}
	}
	if err := book.Note("cut", allocation("1"), func(r *resize.Record) { r.Allocated = allocation("2") }); err != nil || book.Lost("cut") {
		t.Errorf("the record is not recreated: %v", err)
	}
	if again := open(t, dir); again.Lost("empty") || len(again.UIDs()) != 2 {
		t.Error("a renamed file was read again")
	}
}

// TestARecordThatCannotBeReadIsNotReplaced has each read of a file, or of the directory, fail until the disk is well.
func TestARecordThatCannotBeReadIsNotReplaced(t *testing.T) {
	for name, unreadable := range map[string]func(dir, file string) (mend func() error, err error){
		"file": func(_, file string) (func() error, error) {
			err := errors.Join(os.Rename(file, file+".good"), os.Symlink("/proc/self/mem", file))
			return func() error { return os.Rename(file+".good", file) }, err
		},
		"directory": func(dir, _ string) (func() error, error) {
			// A link to nowhere can be neither made nor read.
			err := errors.Join(os.Rename(dir, dir+".good"), os.Symlink("/proc/none", dir))
			return func() error { return errors.Join(os.Remove(dir), os.Rename(dir+".good", dir)) }, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "resizes")
			promise := func(cpu string) func(*resize.Record) {
				return func(r *resize.Record) { r.Allocated = allocation(cpu) }
			}
			if err := open(t, dir).Note("u", allocation("1"), promise("2")); err != nil {
				t.Fatal(err)
			}
			mend, err := unreadable(dir, filepath.Join(dir, "u.json"))
			if err != nil {
				t.Fatal(err)
			}
			logger := slog.New(slog.DiscardHandler)
			book := open(t, dir)
			if book.Unread("u") == nil || book.Problem() == nil || !book.Lost("u") && !book.AllLost() {
				t.Errorf("Unread() = %v, Problem() = %v, want errors", book.Unread("u"), book.Problem())
			}
			if err := book.Note("u", allocation("1"), promise("3")); err == nil {
				t.Error("a record that cannot be read was replaced")
			}
			if got := book.ReadAgain(logger); len(got) > 0 {
				t.Errorf("on the broken disk %v were read", got)
			}
			if err := mend(); err != nil {
				t.Fatal(err)
			}
			if got := book.ReadAgain(logger); !slices.Contains(got, "u") {
				t.Errorf("on the mended disk %v were read, want u", got)
			}
			got, _ := book.Get("u")
			if !got.Allocated.Equal(allocation("2")) || book.Problem() != nil || book.Lost("u") {
				t.Errorf("the record has %+v, Problem() = %v, want 2 CPUs and none", got, book.Problem())
			}
			if err := book.Note("u", allocation("2"), promise("4")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAFailedWriteIsRetriedBySave checks that a record survives a failed write in memory, and that the next Save writes
// it.
func TestAFailedWriteIsRetriedBySave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "resizes")
	book := open(t, dir)
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	err := book.Note("u", allocation("1"), func(r *resize.Record) { r.Allocated = allocation("2") })
	if record, ok := book.Get("u"); !errors.Is(err, unix.ENOTDIR) || !ok || !record.Allocated.Equal(allocation("2")) {
		t.Errorf("error %v, record %+v, want %v and an allocation of 2 CPUs", err, record, unix.ENOTDIR)
	}
	if err := os.Remove(dir); err != nil { // the next write makes it
		t.Fatal(err)
	}
	if err := book.Save("u"); err != nil {
		t.Fatal(err)
	}
	if record, ok := open(t, dir).Get("u"); !ok || !record.Allocated.Equal(allocation("2")) {
		t.Errorf("the next process has %+v", record)
	}
}

func TestManyChangeOneRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "resizes")
	book := open(t, dir)
	var running sync.WaitGroup
	for i := range 20 {
		running.Go(func() {
			err := book.Note("u", allocation("1"), func(r *resize.Record) {
				if r.Actuated.Containers == nil {
					r.Actuated.Containers = map[string]resize.Amounts{}
				}
				r.Actuated.Containers[string(rune('a'+i))] = resize.Amounts{}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if record, _ := open(t, dir).Get("u"); len(record.Actuated.Containers) != 20 {
		t.Errorf("%d of 20 changes are there, want 20", len(record.Actuated.Containers))
	}
}

// TestOnlyTheNewestAllocationIsFinished: a worker may still have an older allocation.
func TestOnlyTheNewestAllocationIsFinished(t *testing.T) {
	book := resizes.InMemory()
	older := podtest.Pod("u", podtest.Container(podtest.List("cpu", "1"), nil))
	newer := podtest.Pod("u", podtest.Container(podtest.List("cpu", "2"), nil))
	book.Change("u", resize.Of(older), func(r *resize.Record) { r.Allocated, r.Actuated.Unfinished = resize.Of(newer), true })
	finish := func(a *resize.Actuated) { a.Unfinished = false }
	if actuated, resized := book.Actuated(older); actuated.Unfinished || !resized {
		t.Error("the older one has something to finish")
	}
	if err := book.Actuate(older, finish); err != nil {
		t.Fatal(err)
	}
	if actuated, _ := book.Actuated(newer); !actuated.Unfinished {
		t.Error("the older one has finished the resize")
	}
	if err := book.Actuate(newer, finish); err != nil {
		t.Fatal(err)
	}
	if actuated, _ := book.Actuated(newer); actuated.Unfinished {
		t.Error("it is not finished")
	}
}
