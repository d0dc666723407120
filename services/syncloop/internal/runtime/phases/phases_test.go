package phases_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

func say(b *phases.Book, uid types.UID) string {
	text := ""
	for _, p := range b.Of(uid) {
		text += fmt.Sprintf("%d:%s[%s]=%v ", p.GetEndedAt().GetSeconds(), p.GetPhase(), p.GetContainer(), p.GetTook().AsDuration())
	}
	return text
}

func TestABookHasTheLastTimeOfEachPhase(t *testing.T) {
	b := phases.New()
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	b.Passed("u", "", metrics.PhaseReady, at(9), time.Second)
	b.Passed("u", "", metrics.PhaseWait, at(1), -time.Second) // a clock that was set back
	b.Passed("u", "b", metrics.PhaseStart, at(4), 2*time.Second)
	for i := range int64(100) { // it restarts and restarts
		b.Passed("u", "a", metrics.PhaseStart, at(3+i), time.Millisecond)
	}
	if got, want := say(b, "u"), "1:wait[]=0s 4:start[b]=2s 9:ready[]=1s 102:start[a]=1ms "; got != want {
		t.Errorf("phases %q, want %q", got, want)
	}
	if got := say(b, "other"); got != "" {
		t.Errorf("another pod has %q", got)
	}
	b.Forget("u")
	if got := say(b, "u"); got != "" {
		t.Errorf("a pod that was forgotten has %q", got)
	}
}

func TestANilBookKeepsNothing(t *testing.T) {
	var b *phases.Book
	b.Passed("u", "", metrics.PhaseReady, time.Unix(1, 0), time.Second)
	b.Forget("u")
	if got := b.Of("u"); got != nil {
		t.Errorf("it has %v", got)
	}
}
