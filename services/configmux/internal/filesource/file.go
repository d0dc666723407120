package filesource

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// file is the known state of one manifest.
type file struct {
	print fingerprint
	// sum is the checksum of the last decoded content.
	sum [sha256.Size]byte
	// life changes when the file is removed and created again.
	life uint64
	// held is the effective content of the manifest: the valid parts of its content, and the last good version of the
	// broken ones.
	held staticpod.Held
	errs []source.Error
	// ignored lists the warnings: fields that are ignored, and parts that have no effect.
	ignored []source.Error
	// lookedAt is the time at which the manifest was last read.
	lookedAt time.Time
}

// howToLook determines how thoroughly a file is examined.
type howToLook int

const (
	// lookIfChanged reads the file if its fingerprint has changed. Bad content is read once more, a moment later, before
	// it is reported.
	lookIfChanged howToLook = iota
	// lookPatiently reads every file, and otherwise works like lookIfChanged.
	lookPatiently
	// lookForSure reads the file and uses its content immediately.
	lookForSure
)

// patient reports whether bad content may be half written, and a missing file may be about to reappear.
func (h howToLook) patient() bool { return h != lookForSure }

// look updates the known state of one file.
func (s *Source) look(ctx context.Context, path string, how howToLook, began time.Time) {
	info, err := os.Stat(path)
	if err != nil {
		if isGone(err) && !isLink(path) {
			if known := s.files[path]; known != nil && !known.held.Empty() && how.patient() {
				s.putOff(path)
				return
			}
			s.forget(ctx, path, began)
			return
		}
		if leadsNowhere(err) {
			s.unusable(ctx, path, began, linkError(err))
			return
		}
		s.broken(ctx, path, began, s.known(path), reason(err))
		return
	}
	if info.IsDir() && path == s.cfg.Path {
		// The manifest has become a directory of manifests.
		s.forget(ctx, path, began)
		s.relook = true
		return
	}
	if isLink(path) && !s.watch.follows(path) {
		s.relook = s.relook || s.watch != nil
	}
	if !info.Mode().IsRegular() {
		s.unusable(ctx, path, began, fmt.Errorf("it is %s: put only manifest files here", kindOf(info.Mode())))
		return
	}
	known := s.known(path)
	if how == lookIfChanged && known != nil && known.print == fingerprintOf(info) && !s.removed[path] {
		return
	}
	data, print, err := read(path)
	if err != nil {
		if isGone(err) {
			s.putOff(path) // it disappeared between two steps; the next look handles it
			return
		}
		s.broken(ctx, path, began, known, err)
		return
	}
	s.decode(ctx, path, how, began, data, print)
}

// decode processes the content of a file.
func (s *Source) decode(
	ctx context.Context,
	path string,
	how howToLook,
	began time.Time,
	data []byte,
	print fingerprint,
) {
	known, sum := s.known(path), sha256.Sum256(data)
	if known != nil && known.sum == sum {
		known.print, known.lookedAt = print, began
		for i := range known.errs {
			known.errs[i].SeenAt = began
		}
		for i := range known.ignored {
			known.ignored[i].SeenAt = began
		}
		if s.removed[path] && len(known.errs) == 0 {
			span, ctx := s.beginRead(ctx, path, began)
			span.AddEvent("removed and made again")
			span.End()
			known.life, s.causes[path], s.changed = s.newLife(path), ctx, true
		}
		return
	}
	result := staticpod.Decode(
		data,
		staticpod.Origin{Source: Name, Allowed: s.cfg.Allowed, Node: s.cfg.Node, Standalone: s.cfg.Standalone, Path: path},
	)
	if len(result.Problems) > 0 && how.patient() {
		s.putOff(path)
		return
	}
	span, ctx := s.beginRead(ctx, path, began)
	next := &file{print: print, sum: sum, lookedAt: began}
	switch {
	case known == nil || s.removed[path] && len(result.Problems) == 0:
		next.life = s.newLife(path)
	default:
		// The last good version of a bad file continues to run. Its new life begins when the file is good.
		next.life = known.life
	}
	var lastGood staticpod.Held
	if known != nil {
		lastGood = known.held
	}
	held, kept := result.WithLastGood(lastGood)
	next.held = held
	for _, p := range result.Problems {
		next.errs = append(next.errs, source.Error{
			Path:    path,
			Pod:     p.Pod,
			Object:  p.Object,
			Field:   p.Field,
			Message: p.Message + kept.Outcome(p, "the file"),
			SeenAt:  began,
		})
	}
	for _, p := range result.Ignored {
		next.ignored = append(
			next.ignored,
			source.Error{Path: path, Pod: p.Pod, Field: p.Field, Message: p.Message, SeenAt: began},
		)
	}
	var failure error
	if len(result.Problems) > 0 {
		failure = result.Problems[0]
	}
	telemetry.End(span, failure)
	s.files[path], s.causes[path], s.changed = next, ctx, true
	s.cfg.Metrics.taken(len(result.Problems) > 0)
}

// broken keeps the state of a file that cannot be read, and reports the error.
func (s *Source) broken(ctx context.Context, path string, began time.Time, known *file, err error) {
	next := &file{lookedAt: began}
	message := "cannot read it: " + err.Error()
	if known != nil {
		next.held, next.life = known.held, known.life
	}
	if !next.held.Empty() {
		message += "; the last good version is kept"
	}
	s.fail(ctx, path, began, next, message)
}

// unusable reports that the path of a manifest is not a regular file. The manifest's content is dropped.
func (s *Source) unusable(ctx context.Context, path string, began time.Time, err error) {
	delete(s.removed, path)
	s.fail(ctx, path, began, &file{lookedAt: began}, "it is skipped: "+err.Error())
}

// fail records a file without content and one error.
func (s *Source) fail(ctx context.Context, path string, began time.Time, next *file, message string) {
	next.errs = []source.Error{{Path: path, Message: message, SeenAt: began}}
	known := s.files[path]
	s.files[path] = next
	if known != nil && len(known.errs) == 1 && known.errs[0].Message == message && known.held.Len() == next.held.Len() {
		return
	}
	s.cfg.Metrics.failed.Inc()
	span, ctx := s.beginRead(ctx, path, began)
	telemetry.FailWith(span, "unreadable", message)
	span.End()
	s.causes[path], s.changed = ctx, true
}

// forget removes the state of a missing file.
func (s *Source) forget(ctx context.Context, path string, began time.Time) {
	delete(s.unsettled, path)
	delete(s.restored, path)
	delete(s.removed, path)
	if s.files[path] == nil {
		return
	}
	span, ctx := s.beginRead(ctx, path, began)
	span.AddEvent("gone")
	span.End()
	delete(s.files, path)
	s.causes[path], s.changed = ctx, true
}

// newLife returns the life of a file that was created, or created again.
func (s *Source) newLife(path string) uint64 {
	delete(s.removed, path)
	s.lives++
	return s.lives
}

// beginRead starts the trace of a change.
func (s *Source) beginRead(ctx context.Context, path string, began time.Time) (trace.Span, context.Context) {
	ctx, span := s.cfg.Tracer.Start(ctx, "source.read", trace.WithNewRoot(), trace.WithTimestamp(began))
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrFile.String(path), telemetry.AttrSource.String(Name))
	}
	return span, ctx
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
