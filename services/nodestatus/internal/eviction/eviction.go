// Package eviction evaluates the eviction thresholds of the node: which are crossed, since when, and which require
// evictions. It is pure: its inputs are readings, the time and the previous state, and its output is the next state.
// Package nodeobject derives the pressure conditions from it, and syncloop, which receives the pressing thresholds,
// evicts pods.
//
// The rules are the kubelet's. A hard threshold presses at once, a soft one when it has been crossed for its grace
// period. A threshold presses until evictionMinimumReclaim above it is available again. A condition lasts while a
// threshold is crossed, regardless of its grace period, and for evictionPressureTransitionPeriod longer.
package eviction

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// The kubelet's names of the signals.
const (
	Memory            = "memory.available"
	AllocatableMemory = "allocatableMemory.available"
	NodeFS            = "nodefs.available"
	NodeFSInodes      = "nodefs.inodesFree"
	ImageFS           = "imagefs.available"
	ImageFSInodes     = "imagefs.inodesFree"
	PIDs              = "pid.available"
	// ContainerFS and ContainerFSInodes are only read if containers and images are on different file systems.
	ContainerFS       = "containerfs.available"
	ContainerFSInodes = "containerfs.inodesFree"
)

// Interval is the minimum frequency of readings, as in the kubelet.
const Interval = 10 * time.Second

// maxAge is the maximum age of a reading.
const maxAge = 3 * Interval

// ConditionOf returns the condition of a signal; empty for an unknown one.
func ConditionOf(signal string) v1.NodeConditionType {
	switch signal {
	case Memory, AllocatableMemory:
		return v1.NodeMemoryPressure
	case NodeFS, NodeFSInodes, ImageFS, ImageFSInodes, ContainerFS, ContainerFSInodes:
		return v1.NodeDiskPressure
	case PIDs:
		return v1.NodePIDPressure
	default:
		return ""
	}
}

// Counts reports whether a signal is a count, and not in bytes.
func Counts(signal string) bool {
	return signal == NodeFSInodes || signal == ImageFSInodes || signal == ContainerFSInodes || signal == PIDs
}

// Threshold is the minimum of available resources.
type Threshold struct {
	// Signal is the name of the signal.
	Signal string
	// Value is the minimum, and MinReclaim the additional amount that is required after it was crossed.
	Value, MinReclaim nodeconfig.Threshold
	// Grace is the grace period; 0 for a hard threshold.
	Grace time.Duration
}

// Hard reports whether pods are evicted at once and without a grace period.
func (t Threshold) Hard() bool { return t.Grace == 0 }

// ThresholdsOf returns the thresholds of a validated configuration, sorted by signal. As in the kubelet, the memory
// threshold also applies to the memory that pods may use together, if that is limited, and the thresholds of the
// containers' file system are ignored: see WithContainerFS.
func ThresholdsOf(k *kubeletconfigv1beta1.KubeletConfiguration) ([]Threshold, error) {
	var all []Threshold
	add := func(field string, texts map[string]string, grace func(signal string) (time.Duration, error)) error {
		for signal, text := range texts {
			value, err := nodeconfig.ParseThreshold(text)
			if err != nil {
				return fmt.Errorf("%s[%s]: %w", field, signal, err)
			}
			reclaim, err := reclaimOf(k, signal)
			if err != nil {
				return err
			}
			gracePeriod, err := grace(signal)
			if err != nil {
				return err
			}
			if signal == ContainerFS || signal == ContainerFSInodes {
				continue
			}
			if ConditionOf(signal) != "" && (value.Fraction > 0 || !value.Quantity.IsZero()) {
				all = append(all, Threshold{Signal: signal, Value: value, MinReclaim: reclaim, Grace: gracePeriod})
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

// WithContainerFS adds the thresholds of the containers' file system if there are readings of it, which means that it
// is not that of images. As in the kubelet, they are those of the node's file system.
func WithContainerFS(thresholds []Threshold, readings map[string]Reading) []Threshold {
	all := slices.Clone(thresholds)
	for _, threshold := range thresholds {
		signal := map[string]string{NodeFS: ContainerFS, NodeFSInodes: ContainerFSInodes}[threshold.Signal]
		if _, read := readings[signal]; read {
			threshold.Signal = signal
			all = append(all, threshold)
		}
	}
	return all
}

func reclaimOf(k *kubeletconfigv1beta1.KubeletConfiguration, signal string) (nodeconfig.Threshold, error) {
	text, set := k.EvictionMinimumReclaim[signal]
	if !set {
		return nodeconfig.Threshold{}, nil
	}
	parsed, err := nodeconfig.ParseThreshold(text)
	if err != nil {
		return nodeconfig.Threshold{}, fmt.Errorf("evictionMinimumReclaim[%s]: %w", signal, err)
	}
	return parsed, nil
}

// Reading is an available amount and the capacity, in bytes, inodes or processes.
type Reading struct {
	Available, Capacity int64
	// At is the time of the reading.
	At time.Time
}

// Signal is a reading with a threshold.
type Signal struct {
	// Name is the name of the signal.
	Name string
	// Available is the available amount, and Threshold the minimum: bytes, inodes or processes.
	Available, Threshold int64
	// Hard is true for a hard threshold.
	Hard bool
	// At is the time of the reading.
	At time.Time
}

// State is the evaluation of the thresholds, and the input to the next one.
type State struct {
	// Read lists the thresholds with a reading, Crossed those that are crossed, and Pressing those that require evictions.
	// All are in the order of the thresholds.
	Read, Crossed, Pressing []Signal
	// Unread lists the signals with a threshold and without a reading.
	Unread []string
	// Seen maps each condition to the time at which it was last observed.
	Seen map[v1.NodeConditionType]time.Time

	// since maps each threshold to the time at which it was crossed, and pressed is the set of pressing ones.
	since   map[key]time.Time
	pressed map[key]bool
}

// Recalled adjusts the state of an earlier process. Times after now were recorded before the clock was set back: they
// are replaced by now, because otherwise a condition would last until then.
func (s State) Recalled(now time.Time) State {
	s.Seen = maps.Clone(s.Seen)
	for kind, seen := range s.Seen {
		if seen.After(now) {
			s.Seen[kind] = now
		}
	}
	return s
}

// recordedState is the JSON of a State.
type recordedState struct {
	Read, Crossed, Pressing []Signal
	Unread                  []string
	Seen                    map[v1.NodeConditionType]time.Time
	// Thresholds are those that are crossed or press.
	Thresholds []recordedThreshold
}

type recordedThreshold struct {
	Signal        string
	Hard, Pressed bool
	// Since is when it was crossed; nil if it is not.
	Since *time.Time
}

// MarshalJSON implements json.Marshaler, for recordings.
func (s State) MarshalJSON() ([]byte, error) {
	out := recordedState{Read: s.Read, Crossed: s.Crossed, Pressing: s.Pressing, Unread: s.Unread, Seen: s.Seen}
	keys := map[key]bool{}
	for k := range s.since {
		keys[k] = true
	}
	for k := range s.pressed {
		keys[k] = true
	}
	for k := range keys {
		one := recordedThreshold{Signal: k.signal, Hard: k.hard, Pressed: s.pressed[k]}
		if since, crossed := s.since[k]; crossed {
			one.Since = &since
		}
		out.Thresholds = append(out.Thresholds, one)
	}
	slices.SortFunc(out.Thresholds, func(a, b recordedThreshold) int {
		return cmp.Or(cmp.Compare(a.Signal, b.Signal), cmp.Compare(fmt.Sprint(a.Hard), fmt.Sprint(b.Hard)))
	})
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *State) UnmarshalJSON(data []byte) error {
	var in recordedState
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*s = State{
		Read: in.Read, Crossed: in.Crossed, Pressing: in.Pressing, Unread: in.Unread, Seen: in.Seen,
		since: map[key]time.Time{}, pressed: map[key]bool{},
	}
	for _, one := range in.Thresholds {
		k := key{one.Signal, one.Hard}
		if one.Since != nil {
			s.since[k] = *one.Since
		}
		if one.Pressed {
			s.pressed[k] = true
		}
	}
	return nil
}

// key identifies a threshold.
type key struct {
	signal string
	hard   bool
}

// Step computes the next state. It does not change its inputs. A reading that is too old is ignored. A threshold
// without a reading is not crossed.
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
		k := key{threshold.Signal, threshold.Hard()}
		minimum := threshold.Value.Of(reading.Capacity)
		signal := Signal{
			Name:      threshold.Signal,
			Available: reading.Available,
			Threshold: minimum,
			Hard:      threshold.Hard(),
			At:        reading.At,
		}
		state.Read = append(state.Read, signal)
		if before.pressed[k] {
			minimum += threshold.MinReclaim.Of(reading.Capacity)
		}
		if reading.Available >= minimum {
			continue
		}
		state.Crossed = append(state.Crossed, signal)
		state.Seen[ConditionOf(threshold.Signal)] = now
		since, known := before.since[k]
		if !known {
			since = now
		}
		state.since[k] = since
		if now.Sub(since) >= threshold.Grace {
			state.pressed[k] = true
			state.Pressing = append(state.Pressing, signal)
		}
	}
	return state
}
