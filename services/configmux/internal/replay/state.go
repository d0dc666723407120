package replay

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/recording"
)

// state is the state of the recorded subscriber. It interprets messages, and has no clock and no file.
type state struct {
	pods map[string]known
	// fresh collects a snapshot; nil outside of a snapshot. The previous state stays until the snapshot is complete.
	fresh map[string]known
	// ready is true after a source is ready; until then further pods may still be named.
	ready bool
}

// known is a pod, and the line that named it.
type known struct {
	pod  *v1.Pod
	line int
}

// apply processes a message, and returns true if the desired state is known and may have changed.
func (s *state) apply(m recording.Message) bool {
	frame := m.Update.GetFrame()
	switch frame.GetKind() {
	case streamv1.Kind_KIND_OPENED:
		s.fresh = nil
		if frame.GetOpening().GetStart() != streamv1.Start_START_RESUMED {
			s.fresh = map[string]known{}
		}
		return false
	case streamv1.Kind_KIND_SNAPSHOT:
		if m.Pod != nil && s.fresh != nil {
			s.fresh[frame.GetKey()] = known{m.Pod, m.Line}
		}
		s.ready = s.ready || m.Update.GetSource().GetReady()
		return false
	case streamv1.Kind_KIND_SYNCED:
		if s.fresh == nil {
			return false // without a snapshot there is nothing to complete
		}
		s.pods, s.fresh = s.fresh, nil
		return s.ready
	case streamv1.Kind_KIND_DELTA:
		return s.change(m)
	case streamv1.Kind_KIND_BOOKMARK, streamv1.Kind_KIND_UNSPECIFIED:
		return false
	default:
		return false
	}
}

func (s *state) change(m recording.Message) bool {
	switch frame := m.Update.GetFrame(); {
	case m.Pod == nil:
		first := !s.ready && m.Update.GetSource().GetReady()
		s.ready = s.ready || first
		return first
	case frame.GetRemoved():
		delete(s.pods, frame.GetKey())
	default:
		if s.pods == nil {
			s.pods = map[string]known{}
		}
		s.pods[frame.GetKey()] = known{m.Pod, m.Line}
	}
	return s.ready
}

// list returns the pods in the order of their lines.
func (s *state) list() []known {
	return slices.SortedFunc(maps.Values(s.pods), func(a, b known) int { return cmp.Compare(a.line, b.line) })
}
