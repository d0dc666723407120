package stream_test

import (
	"fmt"
	"testing"

	"github.com/quartet-node/quartet/internal/stream"
)

// TestAnEdgeThatContinuesAnotherResumesWhoHadBeenToldAll: the others get a snapshot, which says that there is a gap.
func TestAnEdgeThatContinuesAnotherResumesWhoHadBeenToldAll(t *testing.T) {
	first := stream.NewEdge[string](stream.Config{Epoch: "first"})
	sub := subscribe(t, first, nil)
	drain(t, sub, 2)
	first.Emit("pod", "pod#1", "pod#1")
	behind := drain(t, sub, 1)[0].Token
	first.Emit("pod", "pod#2", "pod#2")
	caughtUp, kept := drain(t, sub, 1)[0].Token, first.Token()
	first.Emit("pod", "pod#3", "pod#3") // told, and not kept any more
	ahead := drain(t, sub, 1)[0].Token

	second := stream.NewEdge[string](stream.Config{Epoch: "second", Continues: [][]byte{kept}})
	second.Put("pod", "pod#2")
	second.Emit("pod", "pod#4", "pod#4")
	second.Emit("pod", "pod#5", "pod#5")
	got := drain(t, subscribe(t, second, caughtUp), 3)
	if got[0].Start != stream.StartResumed || got[1].Value != "pod#4" || got[2].Value != "pod#5" {
		t.Errorf("who had been told all that is known got %+v, want to be resumed with the two events", got)
	}
	if rest := drain(t, subscribe(t, second, got[1].Token), 2); rest[0].Start != stream.StartResumed || rest[1].Value != "pod#5" {
		t.Errorf("after the first of them it got %+v, want the second", rest)
	}
	for name, token := range map[string][]byte{"behind": behind, "ahead": ahead} {
		if start := drain(t, subscribe(t, second, token), 1)[0].Start; start != stream.StartSnapshotEpoch {
			t.Errorf("who was %s began with %d, want a snapshot because of the restart", name, start)
		}
	}

	// A third run after which nothing was told but by the second.
	third := stream.NewEdge[string](stream.Config{Epoch: "third", Continues: [][]byte{second.Token()}})
	if start := drain(t, subscribe(t, third, got[2].Token), 1)[0].Start; start != stream.StartResumed {
		t.Errorf("one restart later it began with %d, want to be resumed", start)
	}
	if start := drain(t, subscribe(t, third, caughtUp), 1)[0].Start; start != stream.StartSnapshotEpoch {
		t.Errorf("with a token from before two events it began with %d, want a snapshot", start)
	}
}

func TestAnEdgeThatContinuesAnotherSaysWhenItHasToldTooMuchSince(t *testing.T) {
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
