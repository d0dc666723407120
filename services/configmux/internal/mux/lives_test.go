package mux_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// living returns a pod with a life that its source sets.
func living(p source.Pod, life string) source.Pod {
	p.Life = life
	return p
}

// life reads messages until one has a pod, and returns the pod's life.
func (r *rig) life(uid string) string {
	r.t.Helper()
	for {
		if m := r.next(); m.Key == uid && !m.Removed {
			return m.Value.Pod.GetLife()
		}
	}
}

func TestAPodThatWasGoneBetweenTwoReadingsIsAddedAgain(t *testing.T) {
	r := newRig(t)
	r.watch()
	r.Set("file", reading(living(pod("a", "1"), "1"), living(pod("b", "1"), "2")))
	r.expect("ADD a", "ADD b", "file ready=true")
	before := decode(t, r.Pods()[0]).Annotations[podset.AnnotationSeen]
	r.Set("file", reading(living(pod("a", "1"), "3"), living(pod("b", "1"), "2")))
	r.expect("ADD a", "file ready=true")
	if decode(t, r.Pods()[0]).Annotations[podset.AnnotationSeen] == before {
		t.Error("it was seen first when its earlier life was")
	}
	r.Set("file", reading(living(pod("a", "1"), "3"), living(pod("b", "1"), "2")))
	r.silent()
}

func TestAPodThatMovesToAnotherFileHasNotBeenGone(t *testing.T) {
	r := newRig(t)
	r.watch()
	r.Set("file", reading(living(pod("a", "1"), "1")))
	r.expect("ADD a", "file ready=true")
	moved := living(pod("a", "1"), "2")
	moved.Path = "/file/other"
	r.Set("file", reading(moved))
	r.Set("file", reading(living(pod("a", "1"), "3")))
	r.silent()
}

// Other changes of the pod are part of its addition.
func TestAPodThatIsBackChangedIsAddedOnce(t *testing.T) {
	r := newRig(t)
	r.watch()
	r.Set("file", reading(living(pod("a", "1"), "1")))
	r.expect("ADD a", "file ready=true")
	r.Set("file", reading(living(pod("a", "2"), "2")))
	r.expect("ADD a", "file ready=true")
	r.silent()
}

// A slow subscriber gets only the last change: its life shows that changes were folded.
func TestALifeOutlivesFolding(t *testing.T) {
	again := living(pod("a", "1"), "2")
	for name, unread := range map[string][]source.Reading{
		"gone between two readings":      {reading(again)},
		"gone in a reading":              {reading(), reading(living(pod("a", "1"), "2"))},
		"and a status after that":        {reading(again), reading(phase(again, v1.PodRunning))},
		"and another version after that": {reading(again), reading(living(pod("a", "2"), "2"))},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.Set("file", reading(living(pod("a", "1"), "1")))
			r.watch()
			for _, next := range unread {
				r.Set("file", next)
			}
			if life := r.life("a"); life == "" {
				t.Error("nothing says that the pod was gone")
			}
			r.expect("file ready=true")
		})
	}
}

func TestALifeOutlivesAResumptionAndASnapshot(t *testing.T) {
	r := newRig(t)
	r.Set("file", reading(living(pod("a", "1"), "1"), living(pod("b", "1"), "2")))
	r.subscribe(configv1.Mode_MODE_INCREMENTAL, nil)
	var token []byte
	for token == nil {
		m := r.next()
		token = m.Token
		if p := m.Value.Pod; p != nil && p.GetLife() != "" {
			t.Errorf("the life of %s is %q at the start", m.Key, p.GetLife())
		}
	}
	r.Set("file", reading(living(pod("a", "1"), "3"), living(pod("b", "1"), "2")))
	r.subscribe(configv1.Mode_MODE_INCREMENTAL, token)
	if opened := r.next(); opened.Start != stream.StartResumed {
		t.Fatalf("%+v, want a resumption", opened)
	}
	resumed := r.life("a")
	r.subscribe(configv1.Mode_MODE_INCREMENTAL, nil)
	if fresh := r.life("a"); resumed == "" || fresh != resumed {
		t.Errorf("life %q after a resumption and %q in a snapshot", resumed, fresh)
	}
	r.Set("file", reading(living(pod("a", "1"), "4"), living(pod("b", "1"), "2")))
	for m := r.next(); m.Kind != stream.KindDelta || m.Key != "a"; m = r.next() {
	}
	for _, p := range r.Pods() {
		if p.GetLife() == resumed {
			t.Error("two lives of a pod have one name")
		}
	}
}

// Pods that exist at the start of this process may have been running before it.
func TestAProcessThatBeginsNamesNoLifeOfWhatIsThere(t *testing.T) {
	r := newRig(t)
	r.watch()
	r.Set("api", only(podset.Restore, pod("b", "1")))
	r.Set("api", reading(pod("b", "1"), pod("c", "1")))
	r.Set("file", source.Reading{Failed: true})
	r.Set("file", reading(living(pod("a", "1"), "1")))
	for _, p := range r.Pods() {
		if p.GetLife() != "" {
			t.Errorf("a life %q at the start, want an empty text", p.GetLife())
		}
	}
	r.Set("api", only(podset.Add, pod("d", "1")))
	r.Set("api", only(podset.Remove, pod("d", "1")))
	r.Set("api", only(podset.Add, pod("d", "1")))
	if life := r.life("d"); life == "" {
		t.Error("no life of a pod that has come later")
	}
}

func TestASetIsSentWhenAPodWasGoneInBetween(t *testing.T) {
	for _, mode := range []configv1.Mode{configv1.Mode_MODE_SNAPSHOT, configv1.Mode_MODE_SNAPSHOT_AND_UPDATES} {
		t.Run(mode.String(), func(t *testing.T) {
			r := newRig(t)
			r.Set("file", reading(living(pod("a", "1"), "1")))
			r.collect(mode, "SET [a] ready=[file]")
			r.Set("file", reading(living(pod("a", "1"), "2")))
			r.want("SET file[a] ready=[file]")
		})
	}
}
