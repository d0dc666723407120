package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quartet-node/quartet/internal/stream"
)

// TestAContinuedEdgeResumesSubscribersThatMissedNothing: other followers get a snapshot, which marks the gap.
func TestAContinuedEdgeResumesSubscribersThatMissedNothing(t *testing.T) {
	first := stream.NewEdge[string](stream.Config{Epoch: "first"})
	sub := subscribe(t, first, nil)
	drain(t, sub, 2)
	first.Emit("pod", "pod#1", "pod#1")
	behind := drain(t, sub, 1)[0].Token
	first.Emit("pod", "pod#2", "pod#2")
	caughtUp, kept := drain(t, sub, 1)[0].Token, first.Token()
	first.Emit("pod", "pod#3", "pod#3") // sent, and no longer kept
	ahead := drain(t, sub, 1)[0].Token

	second := stream.NewEdge[string](stream.Config{Epoch: "second", Continues: [][]byte{kept}})
	second.Put("pod", "pod#2")
	second.Emit("pod", "pod#4", "pod#4")
	second.Emit("pod", "pod#5", "pod#5")
	got := drain(t, subscribe(t, second, caughtUp), 3)
	if got[0].Start != stream.StartResumed || got[1].Value != "pod#4" || got[2].Value != "pod#5" {
		t.Errorf("who had been told all that is known got %+v, want to be resumed with the two events", got)
	}
	if rest := drain(
		t,
		subscribe(t, second, got[1].Token),
		2,
	); rest[0].Start != stream.StartResumed ||
		rest[1].Value != "pod#5" {
		t.Errorf("after the first of them it got %+v, want the second", rest)
	}
	for name, token := range map[string][]byte{"behind": behind, "ahead": ahead} {
		if start := drain(t, subscribe(t, second, token), 1)[0].Start; start != stream.StartSnapshotEpoch {
			t.Errorf("who was %s began with %d, want a snapshot because of the restart", name, start)
		}
	}

	// A third run; only the second has sent messages before it.
	third := stream.NewEdge[string](stream.Config{Epoch: "third", Continues: [][]byte{second.Token()}})
	if start := drain(t, subscribe(t, third, got[2].Token), 1)[0].Start; start != stream.StartResumed {
		t.Errorf("one restart later it began with %d, want to be resumed", start)
	}
	if start := drain(t, subscribe(t, third, caughtUp), 1)[0].Start; start != stream.StartSnapshotEpoch {
		t.Errorf("with a token from before two events it began with %d, want a snapshot", start)
	}
}

func TestAContinuedEdgeReportsAnOverflow(t *testing.T) {
	edge := stream.NewEdge[string](stream.Config{LogSize: 4, Continues: [][]byte{[]byte("before/7")}})
	for i := range 5 {
		edge.Emit("pod", fmt.Sprint("pod#", i), "state")
	}
	if start := drain(t, subscribe(t, edge, []byte("before/7")), 1)[0].Start; start != stream.StartSnapshotCompacted {
		t.Errorf("the subscription began with %d, want a snapshot because of compaction", start)
	}
}

func TestWhatIsPutIsStateAndNoEvent(t *testing.T) {
	edge := stream.NewEdge[string](stream.Config{})
	open := subscribe(t, edge, nil)
	drain(t, open, 2)
	edge.Put("b", "b#1")
	edge.Put("a", "a#1")
	edge.Emit("c", "c#1", "c#1")
	if m := drain(t, open, 1)[0]; m.Value != "c#1" {
		t.Errorf("a subscriber got %+v, want the one event", m)
	}
	got := drain(t, subscribe(t, edge, nil), 5)
	if got[1].Value != "a#1" || got[2].Value != "b#1" || got[3].Value != "c#1" {
		t.Errorf("a new subscriber got %+v, want all three", got)
	}
}

// TestAFollowerDoesNotGetAnEventTwice has two restarts. After them it is unknown
// whether the first run has sent one message.
func TestAFollowerDoesNotGetAnEventTwice(t *testing.T) {
	first := stream.NewEdge[string](stream.Config{Epoch: "first"})
	token := first.Token()
	first.Emit("pod", "pod#1", "pod#1") // sent, and not kept
	ahead := first.Token()

	run := func(epoch string, continues []byte) *stream.Edge[string] {
		edge := stream.NewEdge[string](stream.Config{Epoch: epoch, Continues: [][]byte{continues}})
		edge.Put("pod", "pod unknown")
		edge.Doubt(true)
		return edge
	}
	second := run("second", token)
	if got := drain(t, subscribe(t, second, ahead), 3); got[0].Start != stream.StartSnapshotEpoch {
		t.Fatalf("who was told more began with %+v", got[0])
	} else {
		ahead = got[2].Token
	}
	if got := drain(t, subscribe(t, second, ahead), 1)[0]; got.Start != stream.StartResumed {
		t.Errorf("when it comes again it begins with %+v, want to be resumed", got)
	}

	third := run("third", second.Token())
	waiting := subscribe(t, third, ahead)
	if got := drain(t, waiting, 3); got[0].Start != stream.StartSnapshotEpoch {
		t.Errorf("after another restart it begins with %+v, want a snapshot: that run does not know more", got[0])
	} else {
		ahead = got[2].Token
	}
	resumed, fresh := subscribe(t, third, second.Token()), subscribe(t, third, nil)
	drain(t, fresh, 3)
	third.Withhold(2)
	third.Emit("pod", "pod#1", "pod#1")
	third.Emit("pod", "pod#2", "pod#2")
	third.Doubt(false)
	if _, err := waiting.Next(t.Context()); !errors.Is(err, stream.ErrOverflow) {
		t.Errorf("who may have been told gets %v, want ErrOverflow", err)
	}
	again := subscribe(t, third, ahead)
	if got := drain(t, again, 3); got[0].Start != stream.StartSnapshotCompacted || got[1].Value != "pod#2" {
		t.Errorf("when it begins anew it gets %+v, want a snapshot with what has happened", got)
	}
	if got := drain(
		t,
		resumed,
		3,
	); got[0].Start != stream.StartResumed || got[1].Value != "pod#1" ||
		got[2].Value != "pod#2" {
		t.Errorf("who had been told all that was known gets %+v, want the two events", got)
	}
	if got := drain(t, fresh, 2); got[0].Value != "pod#1" || got[1].Value != "pod#2" {
		t.Errorf("who is new gets %+v, want the two events", got)
	}
	third.Emit("pod", "pod#3", "pod#3")
	last := drain(t, again, 1)[0]
	if last.Value != "pod#3" {
		t.Errorf("afterwards it gets %+v, want what all get", last)
	}
	fourth := stream.NewEdge[string](stream.Config{Epoch: "fourth", Continues: [][]byte{third.Token()}})
	if got := drain(t, subscribe(t, fourth, last.Token), 1)[0]; got.Start != stream.StartResumed {
		t.Errorf("when nothing is in doubt any more a restart begins it with %+v, want to be resumed", got)
	}
}

// TestAFollowerThatFellBehindKeepsItsToken: the token shows that the follower has some state, unlike a follower without
// one.
func TestAFollowerThatFellBehindKeepsItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		edge := stream.NewEdge[string](stream.Config{LogSize: 2})
		edge.Put("pod", "pod#0")
		gate := make(chan struct{})
		var starts []stream.Start
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- stream.Follow(ctx, stream.FollowConfig[string]{Source: noting{edge, &starts},
				Handle: func(stream.Change[string]) { <-gate }})
		}()
		synctest.Wait()
		for i := range 5 {
			edge.Emit("pod", fmt.Sprint("pod#", i), "pod")
		}
		close(gate)
		time.Sleep(time.Second)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v, want %v", err, context.Canceled)
		}
		if want := []stream.Start{stream.StartSnapshot, stream.StartSnapshotCompacted}; !slices.Equal(starts, want) {
			t.Errorf("its subscriptions began with %v, want %v", starts, want)
		}
	})
}

// noting is a source that records how its subscriptions begin.
type noting struct {
	stream.Source[string]

	starts *[]stream.Start
}

func (n noting) Subscribe(ctx context.Context, token []byte) (stream.Subscription[string], error) {
	sub, err := n.Source.Subscribe(ctx, token)
	return noted{sub, n.starts}, err
}

type noted struct {
	stream.Subscription[string]

	starts *[]stream.Start
}

func (n noted) Next(ctx context.Context) (stream.Message[string], error) {
	m, err := n.Subscription.Next(ctx)
	if m.Kind == stream.KindOpened {
		*n.starts = append(*n.starts, m.Start)
	}
	return m, err
}

// A run that has kept a token does not know the later changes of the state. A follower whose snapshot contains such
// changes gets another one; a follower that began before continues with the events.
func TestAFollowerWhoseSnapshotShowsMoreThanWasKeptBeginsAgain(t *testing.T) {
	first := stream.NewEdge[string](stream.Config{Epoch: "first"})
	first.Emit("pod", "pod#1", "pod#1")
	early := drain(t, subscribe(t, first, nil), 3)[2].Token
	first.Replace("pod", "pod#1, created")
	first.Moved()
	kept := first.Token()
	between := drain(t, subscribe(t, first, nil), 3)[2].Token
	first.Replace("pod", "pod#1, created twice")
	first.Moved()
	late := drain(t, subscribe(t, first, nil), 3)[2].Token
	again := subscribe(t, first, late)
	if m := drain(t, again, 1)[0]; m.Start != stream.StartResumed || !slices.Equal(m.Token, late) {
		t.Errorf("within the run the last one began with %+v, want to be resumed with its token %s", m, late)
	}
	first.Emit("pod", "pod#2", "pod#2")
	if m := drain(t, again, 1)[0]; !stream.SameEvent(m.Token, first.Token()) || stream.SameEvent(m.Token, late) {
		t.Errorf("after an event it got the token %s, want one of that event, as %s", m.Token, first.Token())
	}

	second := stream.NewEdge[string](stream.Config{Epoch: "second", Continues: [][]byte{kept}})
	for _, tt := range []struct {
		name  string
		token []byte
		want  stream.Start
	}{
		{"knows less than was kept", early, stream.StartResumed},
		{"knows what was kept", between, stream.StartResumed},
		{"knows more than was kept", late, stream.StartSnapshotEpoch},
		{"knows of a later event", first.Token(), stream.StartSnapshotEpoch},
	} {
		if start := drain(t, subscribe(t, second, tt.token), 1)[0].Start; start != tt.want {
			t.Errorf("a follower that %s began with %v, want %v", tt.name, start, tt.want)
		}
	}
}
