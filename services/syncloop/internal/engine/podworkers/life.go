// Package podworkers runs one goroutine for each pod, which makes the runtime match what is wanted of that pod until
// nothing of it is left. The loop tells the [Pool] what is wanted and what was observed; a worker acts through
// [Runtime], asks pleg through [Observer], and reports to [Statuses].
//
// What a worker is to do next is decided without a clock, a network or a lock, in life.go and update.go.
//
// # The life of a pod
//
//	ADD                      REMOVE, DELETE, eviction           nothing of it        what it left
//	 │                       or it ran to its end               runs any more        is removed
//	 ▼                              ▼                                ▼                    ▼
//	 ├───────── syncing ────────────┼────────── terminating ─────────┼──── terminated ────┤ gone
//	    sync, sync again on every       KillPod with the grace          the status is
//	    change, event and retry         period, again until pleg        final; a source
//	                                    sees nothing running            may still name it
//
// A pod that ended by itself, or was evicted, stays terminated for as long as its source names it: its ended
// containers, or its entry in package evictionbook, are how a restarted process knows that it must not run again. It is cleaned up when it is removed. What it held of the
// machine, its cgroup and its volumes, it gives back as soon as it is terminated.
// The table of transitions is that of [Next].
//
// # Two endings
//
// The end of the process is not the end of a pod: a worker is given the process's context, whose end leaves every
// container as it is, and each piece of work has a context of its own under it, which is cut short when the pod is to
// end, or to end sooner. Nothing that ends a context stops a container; only KillPod does.
package podworkers

import "fmt"

// State is where a pod is in its life. It only moves forward.
type State int

// The states, in the order in which a pod moves through them.
const (
	// Syncing: the pod should run. Goes to Terminating.
	Syncing State = iota + 1
	// Terminating: the pod is being stopped. Goes to Terminated.
	Terminating
	// Terminated: nothing of the pod runs any more. Goes to Gone.
	Terminated
	// Gone: nothing of the pod is left, its worker is forgotten. Goes nowhere.
	Gone
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case Syncing:
		return "syncing"
	case Terminating:
		return "terminating"
	case Terminated:
		return "terminated"
	case Gone:
		return "gone"
	default:
		return fmt.Sprintf("State(%d)", int(s))
	}
}

// Input is what moves a pod on.
type Input int

// The inputs.
const (
	// InputEnd: somebody wants the pod to end.
	InputEnd Input = iota + 1
	// InputFinished: the pod has run to its end by itself.
	InputFinished
	// InputStopped: nothing of the pod runs any more, as pleg observed after the last write.
	InputStopped
	// InputCleaned: what the pod left has been removed.
	InputCleaned
)

// String returns the input's name.
func (i Input) String() string {
	switch i {
	case InputEnd:
		return "end"
	case InputFinished:
		return "finished"
	case InputStopped:
		return "stopped"
	case InputCleaned:
		return "cleaned"
	default:
		return fmt.Sprintf("Input(%d)", int(i))
	}
}

// Next returns the state after an input. The second result is false when the input cannot occur in that state; the
// state then stays.
//
//	             end           finished      stopped      cleaned
//	syncing      terminating   terminating   –            –
//	terminating  terminating   terminating   terminated   –
//	terminated   terminated    terminated    –            gone
//	gone         –             –             –            –
func Next(s State, in Input) (State, bool) {
	switch s {
	case Syncing:
		if in == InputEnd || in == InputFinished {
			return Terminating, true
		}
	case Terminating:
		if in == InputEnd || in == InputFinished {
			return Terminating, true
		}
		if in == InputStopped {
			return Terminated, true
		}
	case Terminated:
		if in == InputEnd || in == InputFinished {
			return Terminated, true
		}
		if in == InputCleaned {
			return Gone, true
		}
	case Gone:
	}
	return s, false
}
