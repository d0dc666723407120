package evictionbook_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

func TestEvictionsAreKeptOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	book := open(t, path)
	first := podstore.Eviction{Reason: "Evicted", Message: "memory"}
	for uid, e := range map[types.UID]podstore.Eviction{"u1": first, "u2": {Reason: "Preempting"}} {
		if err := book.Put(uid, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := book.Put("u1", podstore.Eviction{Reason: "Later"}); err != nil {
		t.Fatal(err)
	}
	if err := book.Delete("u2"); err != nil {
		t.Fatal(err)
	}
	if err := book.Delete("u3"); err != nil {
		t.Fatal(err)
	}
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
	if err := book.Put("evicted", podstore.Eviction{Reason: "Evicted", Discard: true}); err != nil {
		t.Fatal(err)
	}
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

func TestAFileThatCannotBeReadIsNamedWithWhatToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	if err := os.WriteFile(path, []byte("{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := evictionbook.Open(path); err == nil || !strings.Contains(err.Error(), path) ||
		!strings.Contains(err.Error(), "remove the file") {
		t.Errorf("Open() error = %v, want an error with %q and with %q", err, path, "remove the file")
	}
}

func TestAnEvictionThatIsNotOnDiskIsNotInTheBook(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	book := open(t, filepath.Join(dir, "evictions.json"))
	if err := book.Put("u1", podstore.Eviction{Reason: "Evicted"}); err == nil {
		t.Fatal("written to a directory that does not exist")
	}
	if _, ok := book.Get("u1"); ok {
		t.Error("the eviction would not survive a restart")
	}
}

func TestWhatCountsForOneBootIsForgottenInTheNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	book := open(t, path)
	if err := book.Put("before", podstore.Eviction{Reason: "Evicted"}); err != nil {
		t.Fatal(err)
	}
	if err := book.PutAll(map[types.UID]podstore.Eviction{"before": {Reason: "Terminated"}, "for-ever": {Reason: "Terminated"}, "static": {Reason: "Terminated", Boot: "one"}}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		boot string
		want []types.UID
	}{{"one", []types.UID{"before", "for-ever", "static"}}, {"two", []types.UID{"before", "for-ever"}}} {
		again := open(t, path)
		if err := again.Booted(test.boot); err != nil || !slices.Equal(again.UIDs(), test.want) {
			t.Errorf("in boot %s there are %v, %v, want %v", test.boot, again.UIDs(), err, test.want)
		}
		if e, _ := again.Get("before"); e.Reason != "Evicted" {
			t.Errorf("the first eviction has become %v, want Reason %q", e, "Evicted")
		}
	}
	if again := open(t, path); slices.Contains(again.UIDs(), "static") {
		t.Error("it is still on disk")
	}
}

func open(t *testing.T, path string) *evictionbook.Book {
	t.Helper()
	book, err := evictionbook.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return book
}
