package volumes

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The kubelet's numbers: after a failure a volume is left alone for so long, twice as long after each further one, and at most so
// long.
const (
	backoffBase = 500 * time.Millisecond
	backoffMax  = 2*time.Minute + 2*time.Second
)

// stuckAfter is how long an operation takes a place among those that run. One that takes longer waits for something: it is let
// alone, and holds up no other.
const stuckAfter = 10 * time.Second

// key names a volume on this node.
type key struct {
	pod types.UID
	// plugin is the Name of the volume's plugin, name that of the volume in the pod's spec.
	plugin, name string
}

// operation is what is done to a volume.
type operation int

// The operations.
const (
	none operation = iota
	settingUp
	tearingDown
)

// intent is what a pod wants of its volumes.
type intent int

// The intents.
const (
	// unsaid: an earlier process has left the volumes, and nobody has said yet what is to become of the pod.
	unsaid intent = iota
	// wanted: the volumes of the pod's spec are to be in place.
	wanted
	// released: nothing of the pod runs any more, and its volumes are to go.
	released
)

// state is a volume as it was wanted and found.
type state struct {
	// in is true when the pod's spec has the volume and a container mounts it.
	in bool
	// there is true when something of it may be on the disk or mounted.
	there bool
	// ready is true once this process has set it up.
	ready bool
	// stale is true when a ready volume is to be brought up to date.
	stale bool
	// running is what is being done to it now, since when.
	running operation
	since   time.Time
	// ended counts the operations that have ended, failures those in a row that failed.
	ended, failures int
	// did is the last operation that has ended, err what it failed of, and notBefore when that operation is tried again. Another one
	// does not wait for that: what cannot be set up can be removed.
	did       operation
	notBefore time.Time
	err       error
}

// wants is what is to be done to a volume, whenever there is room.
func (s *state) wants(pod intent) operation {
	switch pod {
	case wanted:
		if s.in && (!s.ready || s.stale) {
			return settingUp
		}
	case released:
		if s.there {
			return tearingDown
		}
	case unsaid:
	}
	return none
}

// begin notes that an operation begins.
func (s *state) begin(op operation, now time.Time) {
	s.running, s.since = op, now
	switch op {
	case settingUp:
		// It is asked for again by whoever comes from now on. From here something of it may be there, also if this fails.
		s.stale, s.there = false, true
	case tearingDown:
		s.ready = false
	case none:
	}
}

// end notes what an operation has come to.
func (s *state) end(err error, now time.Time) {
	op := s.running
	if op != s.did {
		s.failures = 0
	}
	s.running, s.did, s.err = none, op, err
	s.ended++
	if err != nil {
		s.notBefore = time.Time{}
		if !s.stale { // else it was asked for again meanwhile, and what it has failed of may be gone
			s.notBefore = now.Add(backoff(s.failures))
		}
		s.failures++
		s.stale = s.stale || s.ready // what could not be brought up to date still is to be
		return
	}
	s.failures, s.notBefore = 0, time.Time{}
	switch op {
	case settingUp:
		s.ready = true
	case tearingDown:
		s.ready, s.there = false, false
	case none:
	}
}

// backoff is the pause after a failure that a number of them came before.
func backoff(before int) time.Duration {
	pause := backoffBase
	for range before {
		if pause *= 2; pause >= backoffMax {
			return backoffMax
		}
	}
	return pause
}

// pod is a pod's volumes.
type pod struct {
	intent  intent
	volumes map[key]*state
}

// step is an operation that is to begin.
type step struct {
	key key
	op  operation
}

// decide says which operations begin now, at most so many side by side, and when to look again: zero when nothing is to come by
// itself. At most one is done to a volume at a time; those that are due longest are first, so that none waits for ever.
func decide(pods map[types.UID]*pod, now time.Time, places int) (steps []step, again time.Time) {
	sooner := func(at time.Time) {
		if again.IsZero() || at.Before(again) {
			again = at
		}
	}
	due := map[key]time.Time{}
	for _, p := range pods {
		for k, s := range p.volumes {
			if s.running != none {
				if stuck := s.since.Add(stuckAfter); stuck.After(now) {
					places--
					sooner(stuck)
				}
				continue
			}
			op := s.wants(p.intent)
			switch {
			case op == none:
			case s.did == op && s.notBefore.After(now):
				sooner(s.notBefore)
			default:
				steps = append(steps, step{k, op})
				due[k] = s.notBefore
			}
		}
	}
	slices.SortFunc(steps, func(a, b step) int {
		return cmp.Or(due[a.key].Compare(due[b.key]), cmp.Compare(a.key.pod, b.key.pod), cmp.Compare(a.key.name, b.key.name), cmp.Compare(a.key.plugin, b.key.plugin))
	})
	begun := steps[:min(len(steps), max(places, 0))]
	if len(begun) < len(steps) && len(begun) > 0 {
		sooner(now.Add(stuckAfter)) // those that begin now may hang, and the others wait for their places
	}
	return begun, again
}

// spent tells whether nothing needs to be known of a volume any more.
func (s *state) spent(pod intent) bool {
	return s.running == none && !s.there && (pod == released || !s.in)
}
