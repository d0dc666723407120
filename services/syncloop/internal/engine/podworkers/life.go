// Package podworkers runs one goroutine for each pod, which makes the runtime match the desired pod until nothing of it
// is left. The loop gives the [Pool] the desired pods and the causes of work. A worker acts through [Runtime], asks
// pleg through [Observer], and reports to [Statuses].
//
// The next step of a worker is decided without a clock, a network or a lock, in life.go, update.go and waits.go.
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
// A pod that ended by itself or was evicted stays terminated as long as its source names it. A restarted process knows
// from the ended containers, or from the entry in package evictionbook, that the pod must not run again. The pod is
// cleaned up when it is removed. Its cgroup, its volumes and its other resources are released as soon as it is
// terminated. The table of transitions is that of [Next].
//
// A static pod may come back with its UID while it ends. Its next life gets a worker of its own, which starts when the
// earlier one is gone. The ended containers then stay, so that the next life continues their restart counts.
//
// # Two endings
//
// The end of the process is not the end of a pod. The end of the process's context leaves every container as it is.
// Each piece of work has a context of its own below it, which is canceled if the pod is to end, or to end sooner. The
// end of a context never stops a container; only KillPod does.
package podworkers

import "fmt"

// State is the stage of a pod's life. It only moves forward.
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

// Input moves a pod to another state.
type Input int

// The inputs.
const (
	// InputEnd: the end of the pod was requested.
	InputEnd Input = iota + 1
	// InputFinished: the pod has run to its end by itself.
	InputFinished
	// InputStopped: pleg has observed after the last write that nothing of the pod runs.
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

// Next returns the state after an input. ok is false if the input cannot occur in that state, which then stays.
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
