package podworkers_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

func TestNextIsTheTable(t *testing.T) {
	const no podworkers.State = 0
	inputs := []podworkers.Input{
		podworkers.InputEnd, podworkers.InputFinished, podworkers.InputStopped, podworkers.InputCleaned,
	}
	table := map[podworkers.State][]podworkers.State{
		podworkers.Syncing:     {podworkers.Terminating, podworkers.Terminating, no, no},
		podworkers.Terminating: {podworkers.Terminating, podworkers.Terminating, podworkers.Terminated, no},
		podworkers.Terminated:  {podworkers.Terminated, podworkers.Terminated, no, podworkers.Gone},
		podworkers.Gone:        {no, no, no, no},
	}
	for state, row := range table {
		for i, want := range row {
			got, ok := podworkers.Next(state, inputs[i])
			if want == no {
				if ok || got != state {
					t.Errorf("%v in %v: got %v, %v; it cannot occur, and leaves the state", inputs[i], state, got, ok)
				}
				continue
			}
			if !ok || got != want {
				t.Errorf("%v in %v: got %v, %v; want %v", inputs[i], state, got, ok, want)
			}
		}
	}
}

func TestStateOnlyMovesForward(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := podworkers.Syncing
		for _, in := range rapid.SliceOf(rapid.IntRange(1, 4)).Draw(t, "inputs") {
			next, _ := podworkers.Next(state, podworkers.Input(in))
			if next < state || next > state+1 {
				t.Fatalf("%v came after %v", next, state)
			}
			state = next
		}
	})
}

func TestFoldLosesNoEndingNoShorterGraceAndNoWaiter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		updates := rapid.SliceOfN(rapid.Custom(drawUpdate), 1, 8).Draw(t, "updates")
		var folded podworkers.Update
		var ends, waiters int
		var removed bool
		var pod *v1.Pod
		var grace *int64
		for _, u := range updates {
			folded = podworkers.Fold(folded, u)
			if u.Pod != nil {
				pod = u.Pod
			}
			if u.End == nil {
				continue
			}
			ends++
			waiters += len(u.End.Stopped)
			removed = removed || u.End.Removed
			if g := u.End.Grace; g != nil && (grace == nil || *g < *grace) {
				grace = g
			}
		}
		if folded.Pod != pod {
			t.Fatal("the newest pod does not count")
		}
		if (folded.End != nil) != (ends > 0) {
			t.Fatalf("of %d endings the fold has %v", ends, folded.End)
		}
		if folded.End == nil {
			return
		}
		if folded.End.Removed != removed || len(folded.End.Stopped) != waiters {
			t.Fatalf("got %+v, want removed %v and %d waiters", folded.End, removed, waiters)
		}
		if diff := cmp.Diff(grace, folded.End.Grace); diff != "" {
			t.Fatalf("grace (-want +got):\n%s", diff)
		}
	})
}

// TestThePodHasTheShortestOfWhatWasAskedFor checks that folded requests to end a pod have the shortest grace period, in
// any order, with and without a grace period of their own.
func TestThePodHasTheShortestOfWhatWasAskedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := &v1.Pod{}
		pod.Spec.TerminationGracePeriodSeconds = ptr.To(rapid.Int64Range(0, 60).Draw(t, "spec"))
		if rapid.Bool().Draw(t, "deleted") {
			pod.DeletionGracePeriodSeconds = ptr.To(rapid.Int64Range(0, 60).Draw(t, "deletion"))
		}
		var folded podworkers.Update
		var shortest int64 = 1 << 30
		for _, u := range rapid.SliceOfN(rapid.Custom(drawUpdate), 1, 8).Draw(t, "updates") {
			u.Pod = nil
			folded = podworkers.Fold(folded, u)
			if u.End != nil {
				shortest = min(shortest, podworkers.GraceOf(pod, u.End))
			}
			if folded.End == nil {
				continue
			}
			if got := podworkers.GraceOf(pod, folded.End); got != shortest {
				t.Fatalf("the pod has %d s, the shortest that was asked for is %d s", got, shortest)
			}
		}
	})
}

func drawUpdate(t *rapid.T) podworkers.Update {
	u := podworkers.Update{Cause: podworkers.Cause{Kind: podworkers.CauseKind(rapid.IntRange(0, 3).Draw(t, "cause"))}}
	if rapid.Bool().Draw(t, "pod") {
		u.Pod = &v1.Pod{}
	}
	if rapid.Bool().Draw(t, "end") {
		u.End = &podworkers.End{Removed: rapid.Bool().Draw(t, "removed")}
		if rapid.Bool().Draw(t, "graced") {
			u.End.Grace = ptr.To(rapid.Int64Range(0, 60).Draw(t, "grace"))
		}
		for range rapid.IntRange(0, 2).Draw(t, "waiters") {
			u.End.Stopped = append(u.End.Stopped, make(chan struct{}))
		}
	}
	return u
}

func TestGraceOf(t *testing.T) {
	pod := func(deletion, spec *int64) *v1.Pod {
		p := &v1.Pod{}
		p.DeletionGracePeriodSeconds, p.Spec.TerminationGracePeriodSeconds = deletion, spec
		return p
	}
	for name, c := range map[string]struct {
		pod  *v1.Pod
		end  *podworkers.End
		want int64
	}{
		"no grace period":            {pod(nil, nil), nil, 30},
		"the spec's":                 {pod(nil, ptr.To[int64](7)), &podworkers.End{}, 7},
		"the deletion's":             {pod(ptr.To[int64](3), ptr.To[int64](7)), &podworkers.End{}, 3},
		"asked for, longer":          {pod(ptr.To[int64](3), nil), &podworkers.End{Grace: ptr.To[int64](9)}, 3},
		"asked for, over the spec's": {pod(nil, ptr.To[int64](3)), &podworkers.End{Grace: ptr.To[int64](9)}, 9},
		"never none":                 {pod(nil, ptr.To[int64](7)), &podworkers.End{Grace: ptr.To[int64](0)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := podworkers.GraceOf(c.pod, c.end); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}
