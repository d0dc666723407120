package mux_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
)

// said returns a message as text: a set with the source that caused it, its pods, and the ready sources.
func format(t *testing.T, m stream.Message[mux.Entry]) string {
	t.Helper()
	set := m.Value.Set
	if set == nil {
		p := m.Value.Pod
		return fmt.Sprintf("%s %s", strings.TrimPrefix(p.GetOp().String(), "OP_"), decode(t, p).Name)
	}
	var words []string
	for _, p := range set.GetPods() {
		word := decode(t, p).Name
		if p.GetOp() != configv1.Op_OP_ADD {
			word += " " + strings.TrimPrefix(p.GetOp().String(), "OP_")
		}
		words = append(words, word)
	}
	var ready []string
	for _, s := range set.GetSources() {
		if s.GetReady() {
			ready = append(ready, s.GetName())
		}
	}
	return fmt.Sprintf("SET %s[%s] ready=%v", set.GetSource(), strings.Join(words, " "), ready)
}

// says checks the next messages.
func (r *rig) want(want ...string) {
	r.t.Helper()
	var got []string
	for range want {
		got = append(got, format(r.t, r.next()))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// collect begins a subscription with snapshots, and checks its first set.
func (r *rig) collect(mode configv1.Mode, want string) {
	r.t.Helper()
	r.subscribe(mode, nil)
	if m := r.next(); m.Kind != stream.KindOpened || m.Start != stream.StartSnapshot {
		r.t.Errorf("the first message is %+v, want it opened with a snapshot", m)
	}
	m := r.next()
	if m.Kind != stream.KindSnapshot || m.Key != mux.SetKey || format(r.t, m) != want {
		r.t.Errorf("the second message is %+v, want a snapshot: %s", m, want)
	}
	if m := r.next(); m.Kind != stream.KindSynced {
		r.t.Errorf("the third message is %+v, want the end of the snapshot", m)
	}
}

func TestSnapshotModeTellsTheWholeSetOnEachChange(t *testing.T) {
	r := newRig(t)
	r.collect(configv1.Mode_MODE_SNAPSHOT, "SET [] ready=[]")
	r.Set("file", reading())
	r.want("SET file[] ready=[file]")
	r.Set("api", reading(pod("b", "1"), pod("a", "1")))
	r.want("SET api[a b] ready=[api file]")
	r.Set("file", reading(pod("c", "1")))
	r.want("SET file[a b c] ready=[api file]")
	r.Set("api", reading(pod("a", "2"), pod("b", "1")))
	r.want("SET api[a b c] ready=[api file]")
	r.Set("api", reading(phase(pod("a", "2"), v1.PodRunning), pod("b", "1")))
	r.Set("api", reading(phase(pod("a", "2"), v1.PodRunning)))
	r.want("SET api[a c] ready=[api file]")
	r.collect(configv1.Mode_MODE_SNAPSHOT, "SET [a c] ready=[api file]")
}

func TestSnapshotAndUpdatesTellsSetsOnlyWhenPodsComeOrGo(t *testing.T) {
	r := newRig(t)
	r.collect(configv1.Mode_MODE_SNAPSHOT_AND_UPDATES, "SET [] ready=[]")
	r.Set("api", reading(pod("a", "1"), pod("b", "1"), pod("c", "1")))
	r.want("SET api[a b c] ready=[api]")
	r.Set("api", reading(pod("a", "2"), ending(pod("b", "1")), phase(pod("c", "1"), v1.PodRunning)))
	r.want("UPDATE a", "DELETE b")
	r.Set("api", reading(pod("a", "3"), ending(pod("b", "1")), pod("d", "1")))
	r.want("SET api[a b d] ready=[api]", "UPDATE a")
	r.Set("file", reading())
	r.want("SET file[a b d] ready=[api file]")
}

func TestRestoredPodsAreMarkedInASet(t *testing.T) {
	r := newRig(t)
	r.collect(configv1.Mode_MODE_SNAPSHOT, "SET [] ready=[]")
	r.Set("api", only(podset.Restore, pod("a", "1")))
	r.want("SET api[a RESTORE] ready=[]")
	r.Set("api", reading(pod("a", "1")))
	r.want("SET api[a] ready=[api]")
}

func TestASetIsNeverResumed(t *testing.T) {
	r := newRig(t)
	r.Set("file", reading(pod("a", "1")))
	r.collect(configv1.Mode_MODE_SNAPSHOT, "SET [a] ready=[file]")
	r.Set("file", reading(pod("b", "1")))
	token := r.next().Token
	for name, tc := range map[string]struct {
		token []byte
		want  stream.Start
	}{
		"its own token":            {token, stream.StartSnapshotCompacted},
		"a token of another epoch": {[]byte("other/1"), stream.StartSnapshotEpoch},
		"no token":                 {[]byte("x"), stream.StartSnapshotInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			r.subscribe(configv1.Mode_MODE_SNAPSHOT, tc.token)
			if m := r.next(); m.Start != tc.want || len(m.Token) != 0 {
				t.Errorf("%+v, want %v", m, tc.want)
			}
			r.want("SET [b] ready=[file]")
		})
	}
}

// A subscriber that does not read during many changes gets the final state, not each change.
func TestASlowSubscriberGetsTheLastSet(t *testing.T) {
	r := newRig(t)
	r.Set("file", reading())
	r.Set("api", reading())
	r.collect(configv1.Mode_MODE_SNAPSHOT, "SET [] ready=[api file]")
	for i := range 1000 {
		r.Set("file", reading(pod("a", fmt.Sprint(i)), pod(fmt.Sprintf("b%d", i), "1")))
		r.Set("api", reading(pod("c", fmt.Sprint(i))))
	}
	r.want("SET file[a b999] ready=[api file]", "SET api[a b999 c] ready=[api file]")
}
