package phases_test

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

func format(b *phases.Book, uid types.UID) string {
	text := ""
	for _, p := range b.Of(uid) {
		text += fmt.Sprintf("%d:%s[%s]=%v ", p.GetEndedAt().GetSeconds(), p.GetPhase(), p.GetContainer(), p.GetTook().AsDuration())
	}
	return text
}

func TestABookHasTheLastTimeOfEachPhase(t *testing.T) {
	b := phases.New(nil)
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	b.Passed("u", "", phases.Ready, at(9), time.Second)
	b.Passed("u", "", phases.Wait, at(1), -time.Second) // a clock that was set back
	b.Passed("u", "b", phases.Start, at(4), 2*time.Second)
	for i := range int64(100) { // repeated restarts
		b.Passed("u", "a", phases.Start, at(3+i), time.Millisecond)
	}
	if got, want := format(b, "u"), "1:wait[]=0s 4:start[b]=2s 9:ready[]=1s 102:start[a]=1ms "; got != want {
		t.Errorf("phases %q, want %q", got, want)
	}
	if got := format(b, "other"); got != "" {
		t.Errorf("another pod has %q", got)
	}
	b.Forget("u")
	if got := format(b, "u"); got != "" {
		t.Errorf("a pod that was forgotten has %q, want an empty text", got)
	}
}

func TestANilBookKeepsNothing(t *testing.T) {
	var b *phases.Book
	b.Passed("u", "", phases.Ready, time.Unix(1, 0), time.Second)
	b.PullBegan("u", time.Unix(1, 0))
	b.PullEnded("u", time.Unix(2, 0))
	b.Forget("u")
	if got := b.TakePulls("u"); got != 0 {
		t.Errorf("its pulls took %v, want 0", got)
	}
	if got := b.Of("u"); got != nil {
		t.Errorf("it has %v", got)
	}
}

func TestEachPhaseIsCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	b := phases.New(phases.NewMetrics(registry))
	b.Passed("u", "a", phases.Start, time.Unix(1, 0), -time.Second) // a clock that was set back
	b.Passed("u", "a", phases.Start, time.Unix(9, 0), time.Second)
	metricstest.Want(t, registry, 2, "quartet_pod_start_phase_duration_seconds", "phase", "start")
	metricstest.Want(t, registry, 0, "quartet_pod_start_phase_duration_seconds", "phase", "ready")
}

func TestPullsSideBySideCountOnce(t *testing.T) {
	b := phases.New(nil)
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	// Two concurrent pulls from 1 to 6, one from 8 to 9: six seconds.
	b.PullBegan("u", at(1))
	b.PullBegan("u", at(2))
	b.PullEnded("u", at(4))
	b.PullEnded("u", at(6))
	b.PullBegan("u", at(8))
	b.PullEnded("u", at(9))
	if got := b.TakePulls("u"); got != 6*time.Second {
		t.Errorf("the pulls took %v, want 6 s", got)
	}
	if got := b.TakePulls("u"); got != 0 {
		t.Errorf("once taken, the pulls took %v, want 0", got)
	}
}

func TestThePullsOfAPodThatIsGoneAreForgotten(t *testing.T) {
	b := phases.New(nil)
	b.PullBegan("u", time.Unix(0, 0))
	b.Forget("u")
	b.PullEnded("u", time.Unix(5, 0))
	if got := b.TakePulls("u"); got != 0 { // a new pod with the same UID
		t.Errorf("got %v: the pull was of the pod before", got)
	}
}
