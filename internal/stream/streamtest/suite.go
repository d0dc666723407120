package streamtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/stream"
)

// Transport connects subscribers to a publisher.
type Transport interface {
	// Serve makes src the publisher behind Source. It breaks all subscriptions of a previous publisher, as a restart of
	// the process would.
	Serve(t *testing.T, src stream.Source[string])
	// Source returns the source that subscribers use.
	Source() stream.Source[string]
	// Buffered returns the number of messages that may be in transit to a subscriber that does not read.
	Buffered() int
}

// publisher is the common interface of Level and Edge for the suite.
type publisher interface {
	stream.Source[string]
	write(key string, n int)
	remove(key string, n int)
	state() map[string]string
	Subscribers() int
}

type level struct{ *stream.Level[string] }

func (l level) write(key string, n int)  { l.Put(key, version(key, n)) }
func (l level) remove(key string, _ int) { l.Delete(key) }
func (l level) state() map[string]string { return byKey(l.List()) }

type edge struct {
	*stream.Edge[string]
	mu      sync.Mutex
	present map[string]string
}

func (e *edge) write(key string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.present[key] = version(key, n)
	e.Emit(key, version(key, n), version(key, n))
}

func (e *edge) remove(key string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.present, key)
	e.EmitLast(key, version(key, n))
}

func (e *edge) state() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.present)
}

func byKey(values []string) map[string]string {
	m := map[string]string{}
	for _, v := range values {
		for i := range v {
			if v[i] == '#' {
				m[v[:i]] = v
			}
		}
	}
	return m
}

// Run checks all guarantees of both kinds of publisher through a transport.
func Run(t *testing.T, newTransport func(t *testing.T) Transport) {
	for name, newPublisher := range map[string]func() publisher{
		"level": func() publisher { return level{stream.NewLevel[string](stream.Config{})} },
		"edge": func() publisher {
			return &edge{Edge: stream.NewEdge[string](stream.Config{}), present: map[string]string{}}
		},
	} {
		s := suite{edges: name == "edge", newPublisher: newPublisher, newTransport: newTransport}
		t.Run(name, func(t *testing.T) {
			t.Run("Ordered,Unique,Reliable while writing", s.concurrentWrites)
			t.Run("Resumable after any message", s.resumes)
			t.Run("Resumable over a restart of the server", s.restarts)
			t.Run("Bounded for a subscriber that does not read", s.stuckSubscriber)
			t.Run("Reliable for a follower through restarts", s.follower)
			t.Run("canceled contexts leave nothing behind", s.canceled)
		})
	}
}

type suite struct {
	edges        bool
	newPublisher func() publisher
	newTransport func(t *testing.T) Transport
}

const (
	lastKey  = "last"
	deadline = 30 * time.Second
)

// seeded returns a reproducible source of randomness, so that failures are reproducible.
func seeded(seed uint64, run int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(run))) //nolint:gosec // a test has to repeat
}

// writeRandomly makes writes to a few keys and ends with lastKey, which tells readers that they have received
// everything. It continues from the numbers of an earlier call.
func writeRandomly(p publisher, random *rand.Rand, writes int, numbers map[string]int) {
	keys := []string{"a", "b", "c", "d", "e"}
	for range writes {
		key := keys[random.IntN(len(keys))]
		numbers[key]++
		if random.IntN(5) == 0 {
			p.remove(key, numbers[key])
		} else {
			p.write(key, numbers[key])
		}
	}
	numbers[lastKey]++
	p.write(lastKey, numbers[lastKey])
}

// read subscribes with the reader's token and reads until stop returns true.
func read(ctx context.Context, src stream.Source[string], r *Reader, stop func(stream.Message[string]) bool) error {
	sub, err := src.Subscribe(ctx, r.Token)
	if err != nil {
		return err
	}
	defer sub.Close()
	for {
		m, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if err := r.Check(m); err != nil {
			return err
		}
		if stop(m) {
			return nil
		}
	}
}

func untilLast(r *Reader, n int) func(stream.Message[string]) bool {
	return func(m stream.Message[string]) bool {
		return m.Kind != stream.KindSnapshot && r.State[lastKey] == version(lastKey, n)
	}
}

func (s suite) same(t *testing.T, r *Reader, p publisher) {
	t.Helper()
	if diff := cmp.Diff(p.state(), r.State); diff != "" {
		t.Errorf("%v: publisher (-) and subscriber (+) differ:\n%s", ErrReliable, diff)
	}
}

func (s suite) concurrentWrites(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p, transport := s.newPublisher(), s.newTransport(t)
	transport.Serve(t, p)
	readers := []*Reader{NewReader(s.edges), NewReader(s.edges), NewReader(s.edges)}
	errs := make(chan error, len(readers))
	for _, r := range readers {
		go func() { errs <- read(ctx, transport.Source(), r, untilLast(r, 1)) }()
	}
	writeRandomly(p, seeded(1, 2), 1000, map[string]int{})
	for range readers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range readers {
		s.same(t, r, p)
	}
}

// resumes breaks the subscription off after every possible number of messages, with writes in between.
func (s suite) resumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p, transport := s.newPublisher(), s.newTransport(t)
	transport.Serve(t, p)
	random, numbers := seeded(3, 4), map[string]int{}
	writeRandomly(p, random, 20, numbers)
	r := NewReader(s.edges)
	for after := 1; after < 20; after++ {
		count, hadToken := 0, r.Token != nil
		if err := read(ctx, transport.Source(), r, func(stream.Message[string]) bool {
			count++
			return count >= after || untilLast(r, numbers[lastKey])(stream.Message[string]{})
		}); err != nil {
			t.Fatalf("breaking off after %d messages: %v", after, err)
		}
		if start := r.Starts[len(r.Starts)-1]; hadToken != (start == stream.StartResumed) {
			t.Fatalf("%v: with a token %v, the subscription began with %d", ErrResumable, hadToken, start)
		}
		writeRandomly(p, random, 10, numbers)
	}
	if err := read(ctx, transport.Source(), r, untilLast(r, numbers[lastKey])); err != nil {
		t.Fatal(err)
	}
	s.same(t, r, p)
}

// restarts replaces the publisher by one with another epoch and state. It also checks that invalid tokens are refused.
func (s suite) restarts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	transport, r := s.newTransport(t), NewReader(s.edges)
	for run := range 3 {
		p := s.newPublisher()
		writeRandomly(p, seeded(5, run), 30, map[string]int{lastKey: run})
		transport.Serve(t, p)
		if err := read(ctx, transport.Source(), r, untilLast(r, run+1)); err != nil {
			t.Fatal(err)
		}
		s.same(t, r, p)
	}
	r.Token = []byte("no token of ours")
	if err := read(ctx, transport.Source(), r, untilLast(r, 3)); err != nil {
		t.Fatal(err)
	}
	want := []stream.Start{
		stream.StartSnapshot,
		stream.StartSnapshotEpoch,
		stream.StartSnapshotEpoch,
		stream.StartSnapshotInvalid,
	}
	if diff := cmp.Diff(want, r.Starts); diff != "" {
		t.Errorf("%v: openings:\n%s", ErrResumable, diff)
	}
}

// stuckSubscriber checks that a subscriber that does not read does not delay another one during a hundred thousand
// changes.
func (s suite) stuckSubscriber(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p, transport := s.newPublisher(), s.newTransport(t)
	transport.Serve(t, p)
	stuck, err := transport.Source().Subscribe(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	seen := NewReader(s.edges)
	for range 2 { // opened, synced
		m, err := stuck.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := seen.Check(m); err != nil {
			t.Fatal(err)
		}
	}
	numbers := map[string]int{}
	for round := range 100 {
		writeRandomly(p, seeded(6, round), 1000, numbers)
		awake := NewReader(s.edges)
		if err := read(ctx, transport.Source(), awake, untilLast(awake, numbers[lastKey])); err != nil {
			t.Fatalf("%v: a subscriber is held up by another: %v", ErrBounded, err)
		}
	}
	received := 0
	for !untilLast(seen, numbers[lastKey])(stream.Message[string]{}) {
		m, err := stuck.Next(ctx)
		if errors.Is(err, stream.ErrOverflow) && s.edges {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := seen.Check(m); err != nil {
			t.Fatal(err)
		}
		received++
	}
	if !s.edges {
		s.same(t, seen, p)
	}
	if limit := len(numbers) + transport.Buffered(); received > limit {
		t.Errorf("%v: %d messages were kept for a subscriber that did not read, want at most %d", ErrBounded, received, limit)
	}
}

// follower follows through restarts with changes in between. It checks that each key is added once, updated only while
// it exists, and removed once.
func (s suite) follower(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	transport, random := s.newTransport(t), seeded(7, 8)
	held := map[string]string{}
	var problem error
	states := make(chan map[string]string, 1)
	handle := func(c stream.Change[string]) {
		old, known := held[c.Key]
		if known != (c.Op != stream.OpAdd) || old != c.Old {
			problem = fmt.Errorf("%w: %+v while holding %q (%v)", ErrUnique, c, old, known)
		}
		if c.Op == stream.OpRemove {
			delete(held, c.Key)
		} else {
			held[c.Key] = c.New
		}
		if c.Key == lastKey {
			states <- maps.Clone(held)
		}
	}
	numbers := map[string]int{}
	p := s.newPublisher()
	writeRandomly(p, random, 10, numbers)
	transport.Serve(t, p)
	done := make(chan error, 1)
	go func() {
		done <- stream.Follow(ctx, stream.FollowConfig[string]{
			Source: transport.Source(), Equal: func(a, b string) bool { return a == b }, Handle: handle, Name: "test",
		})
	}()
	for run := range 8 {
		got := <-states
		for got[lastKey] != version(lastKey, numbers[lastKey]) {
			got = <-states
		}
		if run == 7 {
			break
		}
		if run%2 == 0 { // the same publisher behind a broken connection
			transport.Serve(t, p)
			writeRandomly(p, random, 10, numbers)
			continue
		}
		restarted := s.newPublisher()
		for key, value := range p.state() {
			n, err := number(value)
			if err != nil {
				t.Fatal(err)
			}
			restarted.write(key, n)
		}
		p = restarted
		writeRandomly(p, random, 10, numbers)
		transport.Serve(t, p)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Follow returned %v, want the context's error", err)
	}
	if problem != nil {
		t.Error(problem)
	}
	if diff := cmp.Diff(p.state(), held); diff != "" {
		t.Errorf("%v: publisher (-) and follower (+) differ:\n%s", ErrReliable, diff)
	}
}

func (s suite) canceled(t *testing.T) {
	p, transport := s.newPublisher(), s.newTransport(t)
	transport.Serve(t, p)
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		sub, err := transport.Source().Subscribe(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := sub.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}
		failed := make(chan error, 1)
		go func() {
			_, err := sub.Next(ctx)
			failed <- err
		}()
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("Next failed with %v, want the context's error", err)
		}
		sub.Close()
	}
	for end := time.Now().Add(deadline); p.Subscribers() > 0; {
		if time.Now().After(end) {
			t.Fatalf("%v: %d subscriptions are left behind", ErrBounded, p.Subscribers())
		}
	}
}
