package stream_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformanceInProcess(t *testing.T) {
	streamtest.Run(t, func(*testing.T) streamtest.Transport { return &direct{} })
}

// direct connects to a publisher in this process; Serve breaks the subscriptions to the former one, as a restart would.
type direct struct{ current *breakable }

func (d *direct) Serve(_ *testing.T, src stream.Source[string]) {
	if d.current == nil {
		d.current = &breakable{}
	}
	d.current.replace(src)
}
func (d *direct) Source() stream.Source[string] { return d.current }
func (d *direct) Buffered() int                 { return 0 }

func TestBookmarkComesAfterTenIdleSeconds(t *testing.T) {
	ctx := t.Context()
	clock := clocktesting.NewFakeClock(timeZero)
	level := stream.NewLevel[string](stream.Config{Clock: clock})
	level.Put("a", "a#1")
	sub := subscribe(t, level, nil)
	drain(t, sub, 3) // opened, a, synced
	got := make(chan stream.Message[string], 1)
	go func() {
		m, err := sub.Next(ctx)
		if err != nil {
			t.Error(err)
		}
		got <- m
	}()
	for !clock.HasWaiters() {
		runtime.Gosched()
	}
	clock.Step(stream.BookmarkInterval)
	m := <-got
	if m.Kind != stream.KindBookmark || len(m.Token) == 0 {
		t.Fatalf("got %+v, want a bookmark with a token", m)
	}
	if start := drain(t, subscribe(t, level, m.Token), 1)[0].Start; start != stream.StartResumed {
		t.Errorf("a subscription with the bookmark's token began with %d, want a resumption", start)
	}
}

func TestLevelFoldsUnsentChangesAndKeepsTheLastPutLast(t *testing.T) {
	level := stream.NewLevel[string](stream.Config{})
	sub := subscribe(t, level, nil)
	drain(t, sub, 2)
	level.Put("pod", "pod#1")
	level.Put("source", "source#1")
	level.Put("pod", "pod#2")
	level.Put("source", "source#2")
	got := drain(t, sub, 2)
	if got[0].Value != "pod#2" || got[1].Value != "source#2" {
		t.Errorf("got %q then %q, want the latest pod before the latest source", got[0].Value, got[1].Value)
	}
}

func TestLevelDeletesWithALastValue(t *testing.T) {
	level := stream.NewLevel[string](stream.Config{})
	t.Cleanup(level.Close)
	level.Put("a", "1")
	sub := subscribe(t, level, nil)
	drain(t, sub, 3)
	level.DeleteWith("a", "gone")
	level.DeleteWith("a", "gone again")
	level.DeleteWith("never", "there")
	level.Put("b", "2")
	got := drain(t, sub, 2)
	if !got[0].Removed || got[0].Key != "a" || got[0].Value != "gone" {
		t.Errorf("first change is %+v, want the removal of a with its last value", got[0])
	}
	if got[1].Key != "b" {
		t.Errorf("second change is %+v, want b: deleting what is not there is no change", got[1])
	}
}

func TestLevelTokenOlderThanTheTombstonesGetsASnapshot(t *testing.T) {
	level := stream.NewLevel[string](stream.Config{Tombstones: 2})
	level.Put("kept", "kept#1")
	sub := subscribe(t, level, nil)
	token := drain(t, sub, 3)[2].Token
	for i := range 3 {
		key := fmt.Sprint("gone", i)
		level.Put(key, key+"#1")
		level.Delete(key)
	}
	if start := drain(t, subscribe(t, level, token), 1)[0].Start; start != stream.StartSnapshotCompacted {
		t.Errorf("the subscription began with %d, want a snapshot because of compaction", start)
	}
	if _, err := sub.Next(t.Context()); !errors.Is(err, stream.ErrOverflow) {
		t.Errorf("an open subscription that missed a forgotten removal got %v, want ErrOverflow", err)
	}
}

func TestEdgeNeverFoldsAndSaysWhenItOverflows(t *testing.T) {
	edge := stream.NewEdge[string](stream.Config{LogSize: 4})
	sub := subscribe(t, edge, nil)
	drain(t, sub, 2)
	for i := range 4 {
		edge.Emit("pod", fmt.Sprint("pod#", i), "state")
	}
	for i, m := range drain(t, sub, 4) {
		if want := fmt.Sprint("pod#", i); m.Value != want {
			t.Errorf("event %d is %q, want %q", i, m.Value, want)
		}
	}
	for i := range 5 {
		edge.Emit("pod", fmt.Sprint("pod#", i), "state")
	}
	if _, err := sub.Next(t.Context()); !errors.Is(err, stream.ErrOverflow) {
		t.Errorf("got %v, want ErrOverflow", err)
	}
}

// TestASubscriptionBeginsBetweenTwoStates: a snapshot with a state is never followed by an event that led to it.
func TestASubscriptionBeginsBetweenTwoStates(t *testing.T) {
	const states = 2000
	edge := stream.NewEdge[string](stream.Config{LogSize: 4 * states})
	edge.Emit("pod", "started#0", "started#0")
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := range states {
			started := fmt.Sprint("started#", i+1)
			edge.EmitAll("pod", []string{fmt.Sprint("created#", i+1), started}, started)
		}
		edge.EmitLast("pod", "died", "removed")
	}()
	for {
		sub := subscribe(t, edge, nil)
		if messages := drain(t, sub, 2); messages[1].Kind != stream.KindSnapshot {
			break // the pod is gone
		}
		messages := drain(t, sub, 2)
		if event := messages[1]; !strings.HasPrefix(event.Value, "created#") && event.Value != "died" {
			t.Fatalf("the first event is %q, want the first one after the state", event.Value)
		}
		sub.Close()
	}
	<-published
}

func TestCloseEndsSubscriptionsAndRefusesNewOnes(t *testing.T) {
	level := stream.NewLevel[string](stream.Config{})
	sub := subscribe(t, level, nil)
	drain(t, sub, 2)
	level.Close()
	if _, err := sub.Next(t.Context()); !errors.Is(err, stream.ErrClosed) {
		t.Errorf("Next: got %v, want ErrClosed", err)
	}
	if _, err := level.Subscribe(t.Context(), nil); !errors.Is(err, stream.ErrClosed) {
		t.Errorf("Subscribe: got %v, want ErrClosed", err)
	}
}

func subscribe(t *testing.T, src stream.Source[string], token []byte) stream.Subscription[string] {
	t.Helper()
	sub, err := src.Subscribe(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sub.Close)
	return sub
}

func drain(t *testing.T, sub stream.Subscription[string], n int) []stream.Message[string] {
	t.Helper()
	messages := make([]stream.Message[string], n)
	for i := range messages {
		m, err := sub.Next(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		messages[i] = m
	}
	return messages
}
