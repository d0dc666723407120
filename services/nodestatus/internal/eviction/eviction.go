// Package eviction decides what of the node has run short: which thresholds of evictions are crossed, since when, and which
// of them press, so that pods have to go. It is pure: the readings come in with the time and the state of last time, the state comes
// out. Package nodeobject makes the pressure conditions of it, and syncloop, which is told what presses, makes room.
//
// The rules are the kubelet's. A hard threshold presses at once, a soft one when it has been crossed for its grace period. One that
// presses does so until evictionMinimumReclaim more than it asks for is left again. A condition is there while a threshold is crossed,
// grace period or not, and evictionPressureTransitionPeriod longer.
package eviction

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// The names of the signals, the kubelet's. Those of the file system of containers are not here: with every runtime that keeps
// containers where images are or where the node's own files are they say what the others say.
const (
	Memory            = "memory.available"
	AllocatableMemory = "allocatableMemory.available"
	NodeFS            = "nodefs.available"
	NodeFSInodes      = "nodefs.inodesFree"
	ImageFS           = "imagefs.available"
	ImageFSInodes     = "imagefs.inodesFree"
	PIDs              = "pid.available"
)

// Interval is how often what is left is read at least, as by the kubelet.
const Interval = 10 * time.Second

// maxAge is how old a reading may be that still says something.
const maxAge = 3 * Interval

// ConditionOf says which condition a signal sets; empty for one that is none here.
func ConditionOf(signal string) v1.NodeConditionType {
	switch signal {
	case Memory, AllocatableMemory:
		return v1.NodeMemoryPressure
	case NodeFS, NodeFSInodes, ImageFS, ImageFSInodes:
		return v1.NodeDiskPressure
	case PIDs:
		return v1.NodePIDPressure
	default:
		return ""
	}
}

// Counts tells whether a signal is a count, and not of bytes.
func Counts(signal string) bool {
	return signal == NodeFSInodes || signal == ImageFSInodes || signal == PIDs
}

// Threshold is how much of something must be left.
type Threshold struct {
	// Signal is its name.
	Signal string
	// Value is how much must be left, and MinReclaim how much more than that once it was not.
	Value, MinReclaim nodeconfig.Threshold
	// Grace is for how long less may be left; 0 for a hard threshold.
	Grace time.Duration
}

// Hard tells whether pods go at once, and without time to end.
func (t Threshold) Hard() bool { return t.Grace == 0 }

// ThresholdsOf takes the thresholds out of a configuration, which has been validated, in the order of their signals. As for the kubelet,
// what must be left of all memory must also be left of that which pods may use together, if they are held to it.
func ThresholdsOf(k *kubeletconfigv1beta1.KubeletConfiguration) ([]Threshold, error) {
	var all []Threshold
	add := func(field string, texts map[string]string, grace func(signal string) (time.Duration, error)) error {
		for signal, text := range texts {
			value, err := nodeconfig.ParseThreshold(text)
			if err != nil {
				return fmt.Errorf("%s[%s]: %w", field, signal, err)
			}
			least, err := reclaimOf(k, signal)
			if err != nil {
				return err
			}
			patience, err := grace(signal)
			if err != nil {
				return err
			}
			if ConditionOf(signal) != "" && (value.Fraction > 0 || !value.Quantity.IsZero()) {
				all = append(all, Threshold{Signal: signal, Value: value, MinReclaim: least, Grace: patience})
			}
		}
		return nil
	}
	if err := add("evictionHard", k.EvictionHard, func(string) (time.Duration, error) { return 0, nil }); err != nil {
		return nil, err
	}
	if slices.Contains(k.EnforceNodeAllocatable, nodeconfig.EnforcePods) {
		for _, threshold := range all {
			if threshold.Signal == Memory {
				threshold.Signal = AllocatableMemory
				all = append(all, threshold)
			}
		}
	}
	err := add("evictionSoft", k.EvictionSoft, func(signal string) (time.Duration, error) {
		grace, err := time.ParseDuration(k.EvictionSoftGracePeriod[signal])
		if err != nil {
			return 0, fmt.Errorf("evictionSoftGracePeriod[%s]: %w", signal, err)
		}
		return grace, nil
	})
	slices.SortFunc(all, func(a, b Threshold) int {
		return cmp.Or(cmp.Compare(a.Signal, b.Signal), cmp.Compare(a.Grace, b.Grace))
	})
	return all, err
}

func reclaimOf(k *kubeletconfigv1beta1.KubeletConfiguration, signal string) (nodeconfig.Threshold, error) {
	text, set := k.EvictionMinimumReclaim[signal]
	if !set {
		return nodeconfig.Threshold{}, nil
	}
	least, err := nodeconfig.ParseThreshold(text)
	if err != nil {
		return nodeconfig.Threshold{}, fmt.Errorf("evictionMinimumReclaim[%s]: %w", signal, err)
	}
	return least, nil
}

// Reading is how much is left of something, and how much there is in all, in bytes, inodes or processes.
type Reading struct {
	Available, Capacity int64
	// At is when it was read.
	At time.Time
}

// Signal is a reading beside a threshold.
type Signal struct {
	// Name is the signal's.
	Name string
	// Available is what is left and Threshold what must be: bytes, inodes or processes.
	Available, Threshold int64
	// Hard is the threshold's.
	Hard bool
	// At is when what is left was read.
	At time.Time
}

// State is what is known of the thresholds, and what has to be remembered for the next step.
type State struct {
	// Read are the thresholds that could be compared with what is left, Crossed those of them that are crossed, and Pressing those that
	// pods have to go for. All are in the order of the thresholds.
	Read, Crossed, Pressing []Signal
	// Unread names the signals that have a threshold and could not be read.
	Unread []string
	// Seen says when each condition was last seen.
	Seen map[v1.NodeConditionType]time.Time

	// since says since when each threshold is crossed, and pressed which ones pressed.
	since   map[key]time.Time
	pressed map[key]bool
}

// Recalled is a state that an earlier process has left, as it counts now. What it saw later than now, it saw before the clock was set
// back: then that counts as seen now, or a condition would last until the clock is there again.
func (s State) Recalled(now time.Time) State {
	s.Seen = maps.Clone(s.Seen)
	for kind, seen := range s.Seen {
		if seen.After(now) {
			s.Seen[kind] = now
		}
	}
	return s
}

// key is a threshold.
type key struct {
	signal string
	hard   bool
}

// Step makes the state anew. It changes nothing that it was given. A reading that is too old is none. A threshold that cannot be
// compared is not crossed.
func Step(thresholds []Threshold, before State, readings map[string]Reading, now time.Time) State {
	state := State{Seen: map[v1.NodeConditionType]time.Time{}, since: map[key]time.Time{}, pressed: map[key]bool{}}
	maps.Copy(state.Seen, before.Seen)
	for _, threshold := range thresholds {
		reading, ok := readings[threshold.Signal]
		if !ok || now.Sub(reading.At) > maxAge {
			if !slices.Contains(state.Unread, threshold.Signal) {
				state.Unread = append(state.Unread, threshold.Signal)
			}
			continue
		}
		which := key{threshold.Signal, threshold.Hard()}
		least := threshold.Value.Of(reading.Capacity)
		signal := Signal{Name: threshold.Signal, Available: reading.Available, Threshold: least, Hard: threshold.Hard(), At: reading.At}
		state.Read = append(state.Read, signal)
		if before.pressed[which] {
			least += threshold.MinReclaim.Of(reading.Capacity)
		}
		if reading.Available >= least {
			continue
		}
		state.Crossed = append(state.Crossed, signal)
		state.Seen[ConditionOf(threshold.Signal)] = now
		since, known := before.since[which]
		if !known {
			since = now
		}
		state.since[which] = since
		if now.Sub(since) >= threshold.Grace {
			state.pressed[which] = true
			state.Pressing = append(state.Pressing, signal)
		}
	}
	return state
}
