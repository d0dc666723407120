package claimbook_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
)

// machine is a node with one driver whose calls and process may be killed, and what is true of it.
type machine struct {
	book *claimbook.Book
	// disk has what was saved last.
	disk []claimbook.Entry
	// holds has what the driver has prepared, by claim.
	holds map[string]bool
	// wants has the claims of each pod that exists, and runs those of pods of which something runs.
	wants, runs map[types.UID][]string
	pods        int
}

func (m *machine) save() { m.disk = m.book.All() }

// kill replaces the process: what was not saved is lost.
func (m *machine) kill() {
	m.book = claimbook.New()
	for _, entry := range m.disk {
		m.book.Load(entry)
	}
}

// create creates a pod.
func (m *machine) create(t *rapid.T) {
	m.pods++
	uid := types.UID(fmt.Sprint("p", m.pods))
	claims := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 3, rapid.ID[string]).Draw(t, "claims")
	m.wants[uid] = slices.Sorted(slices.Values(claims))
}

// start prepares the claims of a pod, and is killed at any point of that.
func (m *machine) start(t *rapid.T) {
	var idle []types.UID
	for uid := range m.wants {
		if m.runs[uid] == nil {
			idle = append(idle, uid)
		}
	}
	if len(idle) == 0 {
		t.Skip("no pod waits")
	}
	slices.Sort(idle)
	uid := rapid.SampledFrom(idle).Draw(t, "pod")
	stop := rapid.IntRange(0, 4).Draw(t, "kill")
	var claims []claimbook.Claim
	for _, name := range m.wants[uid] {
		claims = append(claims, claim(name, "gpu"))
	}
	prepare, err := m.book.Use(uid, claims)
	if err != nil {
		return // a claim is being unprepared: the pod is retried
	}
	if stop == 0 {
		m.kill()
		return
	}
	m.save()
	for i, c := range prepare {
		if stop == 1 && i > 0 {
			m.kill()
			return
		}
		m.holds[c.Name.Name] = true
		m.book.Answered(c.Name, "gpu", []claimbook.Device{{Name: c.Name.Name}})
	}
	if stop == 2 {
		m.kill()
		return
	}
	for _, c := range prepare {
		m.book.Prepared(c.Name)
	}
	m.save()
	m.runs[uid] = m.wants[uid]
}

// end removes a pod of which nothing runs any more, and is killed at any point of that.
func (m *machine) end(t *rapid.T) {
	if len(m.wants) == 0 {
		t.Skip("there is no pod")
	}
	uid := rapid.SampledFrom(slices.Sorted(maps.Keys(m.wants))).Draw(t, "pod")
	delete(m.runs, uid)
	if rapid.Bool().Draw(t, "leave") {
		m.leave(t, uid)
	}
	delete(m.wants, uid) // also while its claims are not given back, as after a forced deletion
}

// leave gives back the claims of a pod.
func (m *machine) leave(t *rapid.T, uid types.UID) {
	stop, fails := rapid.IntRange(0, 3).Draw(t, "kill"), rapid.Bool().Draw(t, "fails")
	for i, c := range m.book.Leave(uid) {
		switch {
		case stop == 0 && i > 0:
			m.kill()
			return
		case fails && i == 0:
			continue
		}
		for other, claims := range m.runs {
			if slices.Contains(claims, c.Name.Name) {
				t.Fatalf("%s is unprepared while %s uses it", c.Name, other)
			}
		}
		delete(m.holds, c.Name.Name)
		if stop == 1 {
			m.kill()
			return
		}
		m.book.Left(c.Name)
	}
	if stop == 2 {
		m.kill()
		return
	}
	m.save()
}

// check checks that nothing is leaked: the driver holds nothing that the disk does not know, and what runs is prepared.
func (m *machine) check(t *rapid.T) {
	known := map[string]bool{}
	for _, entry := range m.disk {
		known[entry.Name.Name] = true
		if len(entry.Pods) == 0 {
			t.Fatalf("%s has no pod that would give it back", entry.Name)
		}
	}
	for name := range m.holds {
		if !known[name] {
			t.Fatalf("the driver holds %s, and the disk does not know it", name)
		}
	}
	for uid, claims := range m.runs {
		for _, name := range claims {
			c, has := m.book.Claim(full(name))
			if !m.holds[name] || !has || len(c.Drivers["gpu"].Devices) != 1 {
				t.Fatalf("%s runs with the claim %s, which is not prepared: %v", uid, name, c)
			}
		}
	}
}

// TestNothingIsLeakedOrTakenAway runs random pods that share claims, with kills between any two steps. At the end of
// each history, what is left of removed pods is given back.
func TestNothingIsLeakedOrTakenAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{
			book: claimbook.New(), holds: map[string]bool{}, wants: map[types.UID][]string{}, runs: map[types.UID][]string{},
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": m.create, "start": m.start, "end": m.end, "kill": func(*rapid.T) { m.kill() }, "": m.check,
		})
		m.kill()
		for uid := range m.wants {
			delete(m.runs, uid)
		}
		for _, uid := range m.book.Pods() {
			for _, c := range m.book.Leave(uid) {
				delete(m.holds, c.Name.Name)
				m.book.Left(c.Name)
			}
		}
		if len(m.book.All()) > 0 || len(m.holds) > 0 {
			t.Fatalf("left: %v, and the driver holds %v", m.book.All(), m.holds)
		}
	})
}
