package evictions_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/evictions"
	"github.com/quartet-node/quartet/services/syncloop/internal/podstore"
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
		t.Errorf("got %v, %v", got, ok)
	}
	if got := again.UIDs(); !slices.Equal(got, []types.UID{"u1"}) {
		t.Errorf("got %v", got)
	}
}

func TestAFileThatCannotBeReadIsNamedWithWhatToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "evictions.json")
	if err := os.WriteFile(path, []byte("{half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := evictions.Open(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("got %v", err)
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
			t.Errorf("in boot %s there are %v, %v", test.boot, again.UIDs(), err)
		}
		if e, _ := again.Get("before"); e.Reason != "Evicted" {
			t.Errorf("what was evicted before says %v", e)
		}
	}
	if again := open(t, path); slices.Contains(again.UIDs(), "static") {
		t.Error("it is still on disk")
	}
}

func open(t *testing.T, path string) *evictions.Book {
	t.Helper()
	book, err := evictions.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return book
}
