package streamtest_test

import (
	"errors"
	"testing"

	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
)

type message = stream.Message[string]

// TestReaderNamesTheBrokenGuarantee shows that the suite can fail: each transcript breaks one guarantee.
func TestReaderNamesTheBrokenGuarantee(t *testing.T) {
	opened := message{Kind: stream.KindOpened, Start: stream.StartSnapshot}
	synced := message{Kind: stream.KindSynced, Token: []byte("t")}
	snapshot := func(v string) message { return message{Kind: stream.KindSnapshot, Key: "a", Value: v} }
	delta := func(v string) message { return message{Kind: stream.KindDelta, Key: "a", Value: v} }
	for name, tc := range map[string]struct {
		edges      bool
		transcript []message
		want       error
	}{
		"back in time":              {false, []message{opened, snapshot("a#2"), synced, delta("a#1")}, streamtest.ErrOrdered},
		"the same change twice":     {false, []message{opened, synced, delta("a#1"), delta("a#1")}, streamtest.ErrUnique},
		"a key twice in a snapshot": {false, []message{opened, snapshot("a#1"), snapshot("a#1")}, streamtest.ErrUnique},
		"a folded event":            {true, []message{opened, snapshot("a#1"), synced, delta("a#3")}, streamtest.ErrReliable},
		"a delta inside a snapshot": {false, []message{opened, delta("a#1")}, streamtest.ErrReliable},
		"resumed out of nothing":    {false, []message{{Kind: stream.KindOpened, Start: stream.StartResumed}}, streamtest.ErrResumable},
		"a folded state is fine":    {false, []message{opened, snapshot("a#1"), synced, delta("a#3")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := streamtest.NewReader(tc.edges)
			var got error
			for _, m := range tc.transcript {
				if got = r.Check(m); got != nil {
					break
				}
			}
			if !errors.Is(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}
