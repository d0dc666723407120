package volumes

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/backoff"
)

// stuckAfter is how long an operation counts towards the limit of concurrent ones. One that takes longer hangs, and
// delays no other.
const stuckAfter = 10 * time.Second

// key identifies a volume on this node.
type key struct {
	pod types.UID
	// plugin is the Name of the volume's plugin, and name that of the volume in the pod's spec.
	plugin, name string
}

// operation is an operation on a volume.
type operation int

// The operations.
const (
	none operation = iota
	settingUp
	tearingDown
)

// intent is a pod's intent for its volumes.
type intent int

// The intents.
const (
	// unknown: an earlier process has left the volumes, and the intent of the pod is unknown.
	unknown intent = iota
	// wanted: the volumes of the pod's spec should be set up.
	wanted
	// released: nothing of the pod runs any more, and its volumes should be removed.
	released
)

// state is the desired and the observed state of a volume.
type state struct {
	// inSpec is true if the pod's spec has the volume and a container mounts it.
	inSpec bool
	// block is true if the containers use it only as a block device.
	block bool
	// exists is true if something of it may be on disk or mounted.
	exists bool
	// wantedSince is when this process was first told to set it up.
	wantedSince time.Time
	// ready is true after this process has set it up.
	ready bool
	// stale is true if a ready volume should be updated, or an operation is to be repeated at once if it fails.
	stale bool
	// running is the present operation, and since its start.
	running operation
	since   time.Time
	// turn is the place of the present operation.
	turn turn
	// asks is whom the present operation waits for.
	asks asked
	// ended counts the completed operations, and failures the consecutive failed ones.
	ended, failures int
	// did is the last completed operation, err its error, and notBefore the time of its retry. Another operation does not
	// wait for that, because a volume that cannot be set up can be removed.
	did       operation
	notBefore time.Time
	err       error
}

// wants returns the next operation on a volume.
func (s *state) wants(pod intent) operation {
	switch pod {
	case wanted:
		if s.inSpec && (!s.ready || s.stale) {
			return settingUp
		}
	case released:
		if s.exists {
			return tearingDown
		}
	case unknown:
	}
	return none
}

// begin records the start of an operation.
func (s *state) begin(op operation, now time.Time) {
	s.running, s.since, s.turn = op, now, turn{since: now}
	s.stale = false // later requests mark it stale again
	switch op {
	case settingUp:
		s.exists = true // from here something of it may exist, even if this fails
	case tearingDown:
		s.ready = false
	case none:
	}
}

// end records the result of an operation.
func (s *state) end(err error, now time.Time) {
	op := s.running
	if op != s.did {
		s.failures = 0
	}
	s.running, s.did, s.err, s.turn, s.asks = none, op, err, turn{}, asked{}
	s.ended++
	if err != nil {
		s.notBefore = time.Time{}
		if !s.stale { // otherwise it was requested again in the meantime, and the cause of the failure may be gone
			s.notBefore = now.Add(backoff.After(s.failures))
		}
		s.failures++
		s.stale = s.stale || s.ready // a volume that could not be updated stays stale
		return
	}
	s.failures, s.notBefore = 0, time.Time{}
	switch op {
	case settingUp:
		s.ready = true
	case tearingDown:
		s.ready, s.exists = false, false
	case none:
	}
}

// pod holds a pod's volumes.
type pod struct {
	intent  intent
	volumes map[key]*state
	// before is the number of completed operations of each volume when the pod was last wanted.
	before map[key]int
}

// step is an operation to start, or a running one that gets a place again.
type step struct {
	key   key
	op    operation
	again bool
}

// decide returns the operations to start or to continue now, up to a number of concurrent ones, and the time of the
// next decision: zero if there is none. A volume has at most one operation at a time. Operations that were begun come
// first, and then those that are due longest, so that none starves.
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
				if stuck, has := s.turn.stuckAt(); has && stuck.After(now) {
					places--
					sooner(stuck)
				}
				if s.turn.granted != nil {
					steps = append(steps, step{k, s.running, true})
					due[k] = s.since
				}
				continue
			}
			op := s.wants(p.intent)
			switch {
			case op == none:
			case s.did == op && s.notBefore.After(now):
				sooner(s.notBefore)
			default:
				steps = append(steps, step{key: k, op: op})
				due[k] = s.notBefore
			}
		}
	}
	slices.SortFunc(steps, func(a, b step) int {
		if a.again != b.again {
			return map[bool]int{true: -1, false: 1}[a.again]
		}
		return cmp.Or(due[a.key].Compare(due[b.key]), cmp.Compare(a.key.pod, b.key.pod), cmp.Compare(a.key.name, b.key.name),
			cmp.Compare(a.key.plugin, b.key.plugin))
	})
	begun := steps[:min(len(steps), max(places, 0))]
	if len(begun) < len(steps) && len(begun) > 0 {
		sooner(now.Add(stuckAfter)) // new operations may hang, while others wait
	}
	return begun, again
}

// spent reports whether nothing needs to be known about a volume any more.
func (s *state) spent(pod intent) bool {
	return s.running == none && !s.exists && (pod == released || !s.inSpec)
}
