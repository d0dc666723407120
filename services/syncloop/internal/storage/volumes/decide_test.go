package volumes

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/backoff"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/mount-utils"
	"pgregory.net/rapid"
)

// world is a node with mounts in memory. Each operation has two halves. The process may be killed between them; then it
// restarts and reads the disk.
type world struct {
	t       *rapid.T
	now     time.Time
	places  int
	mounter *mount.FakeMounter
	// folders has the volumes with a directory.
	folders map[key]bool
	pods    map[types.UID]*pod
	// running has the operations in progress, and halves those whose first half is done.
	running map[key]operation
	halves  map[key]bool
	// tried is the earliest time of the next try of each volume.
	tried map[key]time.Time
	// live has the pods whose containers may run.
	live map[types.UID]bool
}

var errBroken = errors.New("broken")

// path returns the mount point of a volume.
func path(k key) string { return fmt.Sprintf("/pods/%s/%s", k.pod, k.name) }

func (w *world) mounted(k key) bool {
	points, _ := w.mounter.List()
	return slices.ContainsFunc(points, func(p mount.MountPoint) bool { return p.Path == path(k) })
}

// draw picks a key of a map; ok is false if the map is empty.
func draw[K interface{ ~string | key }, V any](t *rapid.T, m map[K]V, label string) (k K, ok bool) {
	keys := slices.Collect(maps.Keys(m))
	slices.SortFunc(keys, func(a, b K) int {
		if fmt.Sprint(a) < fmt.Sprint(b) {
			return -1
		}
		return 1
	})
	if len(keys) == 0 {
		return k, false
	}
	return rapid.SampledFrom(keys).Draw(t, label), true
}

// want is Manager.Want.
func (w *world) want(uid types.UID, names []string) {
	if w.pods[uid] == nil {
		w.pods[uid] = &pod{volumes: map[key]*state{}}
	}
	p := w.pods[uid]
	p.intent = wanted
	w.live[uid] = true
	for _, s := range p.volumes {
		s.inSpec = false
	}
	for _, name := range names {
		k := key{uid, "plugin", name}
		if p.volumes[k] == nil {
			p.volumes[k] = &state{}
		}
		p.volumes[k].inSpec, p.volumes[k].stale = true, true
	}
}

// release is Manager.Release. The containers of the pod are gone.
func (w *world) release(uid types.UID) {
	delete(w.live, uid)
	w.find(uid)
	if p := w.pods[uid]; p != nil {
		p.intent = released
	}
}

// find adds the volumes of a pod that are on the disk.
func (w *world) find(uid types.UID) {
	for k := range w.folders {
		if k.pod != uid {
			continue
		}
		if w.pods[uid] == nil {
			w.pods[uid] = &pod{volumes: map[key]*state{}}
		}
		if w.pods[uid].volumes[k] == nil {
			w.pods[uid].volumes[k] = &state{}
		}
		w.pods[uid].volumes[k].exists = true
	}
}

// begin starts the decided operations and checks the invariants.
func (w *world) begin() {
	steps, _ := decide(w.pods, w.now, w.places)
	fresh := len(steps)
	for k := range w.running {
		if w.now.Before(w.pods[k.pod].volumes[k].since.Add(stuckAfter)) {
			fresh++
		}
	}
	if fresh > w.places && len(steps) > 0 {
		w.t.Fatalf("%d are done side by side, %d may be", fresh, w.places)
	}
	for _, s := range steps {
		if _, twice := w.running[s.key]; twice {
			w.t.Fatalf("two at a time on %v", s.key)
		}
		if w.now.Before(w.tried[s.key]) && w.pods[s.key.pod].volumes[s.key].did == s.op {
			w.t.Fatalf("%v is tried again too soon", s.key)
		}
		if s.op == tearingDown && w.live[s.key.pod] {
			w.t.Fatalf("%v is removed while its pod runs", s.key)
		}
		if s.op == settingUp && w.pods[s.key.pod].intent != wanted {
			w.t.Fatalf("%v is set up and nobody wants it", s.key)
		}
		w.pods[s.key.pod].volumes[s.key].begin(s.op, w.now)
		w.running[s.key] = s.op
	}
}

// half does the first half of an operation.
func (w *world) half(k key) {
	if w.halves[k] {
		return
	}
	w.halves[k] = true
	if w.running[k] == settingUp {
		w.folders[k] = true
	} else if w.mounted(k) {
		_ = w.mounter.Unmount(path(k))
	}
}

// end does the second half of an operation, or fails it.
func (w *world) end(k key, err error) {
	op := w.running[k]
	if err == nil {
		w.half(k)
		switch {
		case op == settingUp && !w.mounted(k):
			_ = w.mounter.Mount("tmpfs", path(k), "tmpfs", nil)
		case op == tearingDown && w.mounted(k):
			w.t.Fatalf("the folder of %v is removed and something is mounted there", k)
		case op == tearingDown:
			delete(w.folders, k)
		}
	}
	delete(w.running, k)
	delete(w.halves, k)
	p := w.pods[k.pod]
	s := p.volumes[k]
	failures, again := s.failures, s.stale
	if s.did != op {
		failures = 0
	}
	s.end(err, w.now)
	delete(w.tried, k)
	if err != nil && !again {
		w.tried[k] = w.now.Add(min(backoff.First<<min(failures, 20), backoff.Last))
	}
	maps.DeleteFunc(p.volumes, func(_ key, s *state) bool { return s.spent(p.intent) })
	if len(p.volumes) == 0 && p.intent != wanted {
		delete(w.pods, k.pod)
	}
}

// kill is a kill -9 of the process and a restart.
func (w *world) kill() {
	w.pods, w.running, w.halves, w.tried = map[types.UID]*pod{}, map[key]operation{}, map[key]bool{}, map[key]time.Time{}
	for k := range w.folders {
		w.find(k.pod)
	}
}

// TestVolumesComeAndGoInAnyHistory lets pods come and go, operations end, fail and hang, and the process be killed,
// in any order. Then everything succeeds, and the volumes must be as desired.
func TestVolumesComeAndGoInAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t, now: time.Unix(1_700_000_000, 0), places: rapid.IntRange(1, 4).Draw(t, "places"),
			mounter: mount.NewFakeMounter(nil),
			folders: map[key]bool{}, live: map[types.UID]bool{},
		}
		w.kill()
		uids := []types.UID{"a", "b", "c"}
		names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"x", "y", "z"}), 1, 3, rapid.ID[string])
		volumes, wants := map[types.UID][]string{}, map[types.UID][]string{}
		for _, uid := range uids { // a returning pod has the same UID
			volumes[uid] = names.Draw(t, "volumes")
		}
		t.Repeat(map[string]func(*rapid.T){
			"want": func(t *rapid.T) {
				uid := rapid.SampledFrom(uids).Draw(t, "pod")
				wants[uid] = volumes[uid]
				w.want(uid, wants[uid])
			},
			"release": func(t *rapid.T) {
				uid := rapid.SampledFrom(uids).Draw(t, "pod")
				delete(wants, uid)
				w.release(uid)
			},
			"half": func(t *rapid.T) {
				if k, ok := draw(t, w.running, "volume"); ok {
					w.half(k)
				}
			},
			"end": func(t *rapid.T) {
				if k, ok := draw(t, w.running, "volume"); ok {
					w.end(k, nil)
				}
			},
			"fail": func(t *rapid.T) {
				if k, ok := draw(t, w.running, "volume"); ok {
					w.end(k, errBroken)
				}
			},
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.Int64Range(1, int64(3*time.Minute)).Draw(t, "for")))
			},
			"kill": func(*rapid.T) { w.kill() },
			"":     func(*rapid.T) { w.begin() },
		})
		w.settle(wants, uids)
	})
}

// settle lets every operation succeed, and checks that all volumes are as desired.
func (w *world) settle(wants map[types.UID][]string, uids []types.UID) {
	for _, uid := range uids {
		if wants[uid] != nil {
			w.want(uid, wants[uid])
		} else {
			w.release(uid)
		}
	}
	for range 100 {
		for _, k := range slices.Collect(maps.Keys(w.running)) {
			w.end(k, nil)
		}
		w.now = w.now.Add(backoff.Last)
		w.begin()
	}
	want := map[key]bool{}
	for uid, names := range wants {
		for _, name := range names {
			k := key{uid, "plugin", name}
			want[k] = true
			if s := w.pods[uid].volumes[k]; !s.ready || s.stale || !w.mounted(k) {
				w.t.Fatalf("%v is not in place: %+v", k, s)
			}
		}
	}
	if !maps.Equal(want, w.folders) {
		w.t.Fatalf("on the disk: %v, want %v", w.folders, want)
	}
	if points, _ := w.mounter.List(); len(points) != len(want) {
		w.t.Fatalf("mounted: %v, want %d entries", points, len(want))
	}
}

// TestTheNextLookIsNeverMissed checks that nothing is due before the time that decide returns.
func TestTheNextLookIsNeverMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		around := rapid.Custom(func(t *rapid.T) time.Time {
			return now.Add(time.Duration(rapid.Int64Range(-int64(time.Minute), int64(time.Minute)).Draw(t, "around")))
		})
		pods := map[types.UID]*pod{}
		for i := range rapid.IntRange(0, 12).Draw(t, "volumes") {
			uid := types.UID(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pod"))
			if pods[uid] == nil {
				pods[uid] = &pod{
					intent:  rapid.SampledFrom([]intent{wanted, released, wanted, released, unknown}).Draw(t, "intent"),
					volumes: map[key]*state{},
				}
			}
			s := &state{inSpec: rapid.Bool().Draw(t, "in"), exists: rapid.Bool().Draw(t, "there"), ready: rapid.Bool().Draw(t, "ready"), stale: rapid.Bool().Draw(t, "stale")}
			if s.exists {
				s.running = rapid.SampledFrom([]operation{none, none, none, settingUp, tearingDown}).Draw(t, "running")
			}
			s.did = rapid.SampledFrom([]operation{none, settingUp, tearingDown}).Draw(t, "did")
			s.notBefore, s.since = around.Draw(t, "not before"), around.Draw(t, "since")
			if s.since.After(now) {
				s.since = now
			}
			pods[uid].volumes[key{uid, "plugin", fmt.Sprint(i)}] = s
		}
		places := rapid.IntRange(1, 3).Draw(t, "places")
		steps, again := decide(pods, now, places)
		for _, s := range steps {
			pods[s.key.pod].volumes[s.key].begin(s.op, now)
		}
		for at := now; at.Before(now.Add(3 * time.Minute)); at = at.Add(250 * time.Millisecond) {
			if more, _ := decide(pods, at, places); len(more) > 0 {
				if again.IsZero() || again.After(at) {
					t.Fatalf("%v can begin at %v, the next look is at %v", more, at.Sub(now), again.Sub(now))
				}
				return
			}
		}
	})
}
