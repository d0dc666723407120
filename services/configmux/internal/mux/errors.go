package mux

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// errorKey identifies an error: a repeated one is only counted.
type errorKey struct{ path, pod, object, field, message string }

// seenError counts the occurrences of an error.
type seenError struct {
	first, last time.Time
	count       int32
}

// noteErrors replaces the errors of a source after a reading; errors that are not in it any more are solved. Each error
// is logged when it appears and when it is solved. The mux is locked.
func (m *Mux) noteErrors(name string, state *sourceState, reading *source.Reading) {
	all := slices.Concat(state.given, state.refusals(), state.hidden)
	now := make(map[errorKey]*seenError, len(all))
	for _, e := range all {
		key := errorKey{path: e.Path, pod: e.Pod, object: e.Object, field: e.Field, message: e.Message}
		known := state.errs[key]
		switch {
		case known == nil:
			known = &seenError{first: e.SeenAt, last: e.SeenAt, count: 1}
			m.note(
				causeOf(reading, e.Path),
				slog.LevelWarn,
				e.Message,
				telemetry.KeySource,
				name,
				telemetry.KeyFile,
				e.Path,
				telemetry.KeyPod,
				e.Pod,
				telemetry.KeyObject,
				e.Object,
				"field",
				e.Field,
			)
		case e.SeenAt.After(known.last):
			known.last = e.SeenAt
			if known.count < math.MaxInt32 {
				known.count++
			}
		}
		now[key] = known
	}
	for key := range state.errs {
		if now[key] == nil {
			m.note(
				causeOf(reading, key.path),
				slog.LevelInfo,
				"mended",
				telemetry.KeySource,
				name,
				telemetry.KeyFile,
				key.path,
				telemetry.KeyPod,
				key.pod,
				telemetry.KeyObject,
				key.object,
				"was",
				key.message,
			)
		}
	}
	state.errs = now
}

// causeOf returns the trace of the change of a path; one without a span if the path did not change.
func causeOf(reading *source.Reading, path string) context.Context {
	if cause, known := reading.Causes[path]; known {
		return cause
	}
	return context.Background()
}

// listErrors returns the errors of a source, sorted by path, pod and field.
func (s *sourceState) listErrors() []*configv1.SourceError {
	out := make([]*configv1.SourceError, 0, len(s.errs))
	for key, seen := range s.errs {
		out = append(out, &configv1.SourceError{
			Path:        sendable(key.path),
			Pod:         sendable(key.pod),
			Object:      sendable(key.object),
			Field:       sendable(key.field),
			Message:     sendable(key.message),
			Count:       seen.count,
			FirstSeenAt: timestamppb.New(seen.first),
			LastSeenAt:  timestamppb.New(seen.last),
		})
	}
	slices.SortFunc(out, func(a, b *configv1.SourceError) int {
		return cmp.Or(
			cmp.Compare(a.GetPath(), b.GetPath()),
			cmp.Compare(a.GetPod(), b.GetPod()),
			cmp.Compare(a.GetObject(), b.GetObject()),
			cmp.Compare(a.GetField(), b.GetField()),
			cmp.Compare(a.GetMessage(), b.GetMessage()),
		)
	})
	return out
}

// sendable makes a text valid UTF-8, as the wire requires. The name of a file can be any bytes.
func sendable(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
