package plugins

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/backoff"
	"pgregory.net/rapid"
)

func known(string) bool { return false }

func TestBackoffDoublesToTheKubeletsMaximum(t *testing.T) {
	b, now := newBook(maxSockets), time.Unix(1, 0)
	b.observe(map[string]identity{"/r/a": {inode: 1}}, known)
	var waits []time.Duration
	for range 11 {
		steps, _ := b.decide(now)
		if len(steps) != 1 || steps[0].op != registering {
			t.Fatalf("at its time the steps are %v, want exactly one and steps[0].op %v", steps, registering)
		}
		b.begin(steps[0])
		retry, _ := b.registered("/r/a", Plugin{}, errors.New("refused"), now)
		waits = append(waits, retry)
		if steps, again := b.decide(now.Add(retry - 1)); len(steps) > 0 || !again.Equal(now.Add(retry)) {
			t.Fatalf("before its time the steps are %v, again at %v", steps, again)
		}
		now = now.Add(retry)
	}
	want := []time.Duration{
		500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second,
		32 * time.Second, 64 * time.Second, 122 * time.Second, 122 * time.Second, 122 * time.Second,
	}
	if !slices.Equal(waits, want) {
		t.Errorf("it waits %v, want %v", waits, want)
	}
	b.observe(map[string]identity{"/r/a": {inode: 2}}, known)
	if steps, _ := b.decide(now.Add(-time.Minute)); len(steps) != 1 {
		t.Error("a new socket at the same path waits for the old one's back-off")
	}
}

func TestOnlyANewErrorIsNews(t *testing.T) {
	b := newBook(maxSockets)
	b.observe(map[string]identity{"/r/a": {inode: 1}}, known)
	now := time.Unix(1, 0)
	for i, want := range []struct {
		err  error
		news bool
	}{{errors.New("x"), true}, {errors.New("x"), false}, {errors.New("y"), true}, {nil, true}} {
		now = now.Add(time.Hour)
		steps, _ := b.decide(now)
		b.begin(steps[0])
		if _, news := b.registered("/r/a", Plugin{}, want.err, now); news != want.news {
			t.Errorf("result %d is news: %v, want %v", i, news, want.news)
		}
	}
}

func TestKnownSocketsStayBelowTheLimit(t *testing.T) {
	b := newBook(2)
	b.observe(map[string]identity{"/r/m": {inode: 1}, "/r/n": {inode: 2}}, known)
	_, excess := b.observe(map[string]identity{"/r/a": {inode: 3}, "/r/m": {inode: 1}, "/r/n": {inode: 2}}, known)
	if excess != 1 || b.sockets["/r/m"].seen == nil || b.sockets["/r/n"].seen == nil || b.sockets["/r/a"] != nil {
		t.Errorf("a third socket makes an excess of %d and the sockets %v", excess, b.sockets)
	}
	b.observe(map[string]identity{"/r/a": {inode: 3}, "/r/m": {inode: 1}}, known)
	if b.sockets["/r/a"] == nil {
		t.Error("a socket does not get a free place")
	}
}

// world is a folder of sockets, with a handler that has the registered plugins.
type world struct {
	now     time.Time
	inodes  uint64
	folder  map[string]identity
	running map[string]step
	on      map[string]identity
	// served has the socket for which each path's plugin is registered with the handler.
	served map[string]identity
	// tried and failed are the time of the last failure and the number of consecutive ones of a socket.
	failed map[identity]int
	next   map[identity]time.Time
}

// TestPluginsFollowTheFolder: after any sequence of changes, results and restarts, the registered plugins are those of
// the sockets in the folder, as soon as calls succeed.
func TestPluginsFollowTheFolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := world{
			now: time.Unix(1, 0), folder: map[string]identity{}, running: map[string]step{}, on: map[string]identity{},
			served: map[string]identity{}, failed: map[identity]int{}, next: map[identity]time.Time{},
		}
		b := newBook(3)
		path := func(t *rapid.T) string { return fmt.Sprintf("/r/%d", rapid.IntRange(0, 3).Draw(t, "path")) }
		start := func(t *rapid.T) {
			steps, _ := b.decide(w.now)
			for _, next := range steps {
				if _, twice := w.running[next.path]; twice {
					t.Fatalf("two operations at once on %s", next.path)
				}
				b.begin(next)
				w.running[next.path] = next
				_, served := w.served[next.path]
				switch next.op {
				case registering:
					id := *b.sockets[next.path].seen
					if w.next[id].After(w.now) {
						t.Fatalf("%s is retried before its time", next.path)
					}
					w.on[next.path] = id
					if served {
						t.Fatalf("%s is registered twice", next.path)
					}
				case deregistering:
					if id, present := w.folder[next.path]; present && served && id == w.served[next.path] {
						t.Fatalf("the present plugin of %s is deregistered", next.path)
					}
				case none:
					t.Fatal("a step without an operation")
				}
			}
		}
		end := func(t *rapid.T, p string, err error) {
			next := w.running[p]
			delete(w.running, p)
			if next.op == deregistering {
				delete(w.served, p)
				b.deregistered(p)
				return
			}
			id := w.on[p]
			if err == nil {
				w.served[p] = id
			}
			retry, _ := b.registered(p, Plugin{Name: p}, err, w.now)
			if err != nil && retry > 0 {
				if want := backoff.After(w.failed[id]); retry != want {
					t.Fatalf("failure %d of %s waits %v, want %v", w.failed[id]+1, p, retry, want)
				}
				w.failed[id]++
				w.next[id] = w.now.Add(retry)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"create or replace": func(t *rapid.T) {
				w.inodes++
				w.folder[path(t)] = identity{inode: w.inodes}
			},
			"remove": func(t *rapid.T) { delete(w.folder, path(t)) },
			"look": func(t *rapid.T) {
				blind := rapid.Bool().Draw(t, "cannot be read")
				found := w.folder
				if blind {
					found = nil
				}
				cancel, _ := b.observe(found, func(string) bool { return blind })
				for _, p := range cancel {
					if w.running[p].op != registering || w.folder[p] == w.on[p] {
						t.Fatalf("%s is canceled", p)
					}
				}
			},
			"start": start,
			"time":  func(t *rapid.T) { w.now = w.now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "s")) * time.Second) },
			"end": func(t *rapid.T) {
				p := path(t)
				if _, runs := w.running[p]; !runs {
					t.Skip()
				}
				end(t, p, rapid.SampledFrom([]error{nil, errors.New("no")}).Draw(t, "result"))
			},
			"restart": func(*rapid.T) {
				b, w.running, w.served = newBook(3), map[string]step{}, map[string]identity{}
				w.failed, w.next = map[identity]int{}, map[identity]time.Time{}
			},
			"": func(t *rapid.T) {
				if len(b.sockets) > 3 {
					t.Fatalf("%d sockets exceed the limit", len(b.sockets))
				}
			},
		})
		for range 10 { // everything succeeds from here
			b.observe(w.folder, known)
			w.now = w.now.Add(time.Hour)
			start(t)
			for p := range w.running {
				end(t, p, nil)
			}
		}
		if len(w.folder) <= 3 {
			if len(w.served) != len(w.folder) {
				t.Fatalf("the plugins %v are registered, the folder has %v, want %d entries", w.served, w.folder, len(w.folder))
			}
			for p, id := range w.folder {
				if w.served[p] != id {
					t.Fatalf("%s is registered for socket %v, the folder has %v", p, w.served[p], id)
				}
			}
		}
		if len(b.sockets) != min(len(w.folder), 3) {
			t.Fatalf("%d sockets are remembered, the folder has %d", len(b.sockets), len(w.folder))
		}
	})
}
