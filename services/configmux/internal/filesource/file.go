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

// file is what is known of one manifest.
type file struct {
	print fingerprint
	// sum is that of the content that was last decoded.
	sum [sha256.Size]byte
	// life is another one when the file was removed and made again.
	life uint64
	// held is what the manifest stands for: what is good in its content, and of what is broken now the last good version.
	held staticpod.Held
	errs []source.Error
	// ignored is what its good pods have and should not, and what counts as if it were not there.
	ignored []source.Error
	// lookedAt is when the manifest was last read.
	lookedAt time.Time
}

// howToLook says how closely a file is looked at.
type howToLook int

const (
	// lookIfChanged reads the file when its fingerprint is another. When the content is bad it is looked at once more, a
	// moment later, before that is said.
	lookIfChanged howToLook = iota
	// lookPatiently does the same with every file.
	lookPatiently
	// lookForSure reads the file, and what it says counts.
	lookForSure
)

// patient reports whether content that is bad may only be half written, and a file that is gone only on its way.
func (h howToLook) patient() bool { return h != lookForSure }

// look brings what is known of one file up to date.
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
		// What was one manifest has become the directory of them.
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
			s.putOff(path) // it went between two looks; the next one finds out
			return
		}
		s.broken(ctx, path, began, known, err)
		return
	}
	s.decode(ctx, path, how, began, data, print)
}

// decode takes in the content of a file.
func (s *Source) decode(ctx context.Context, path string, how howToLook, began time.Time, data []byte, print fingerprint) {
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
	result := staticpod.Decode(data, staticpod.Origin{Source: Name, Allowed: s.cfg.Allowed, Node: s.cfg.Node, Standalone: s.cfg.Standalone, Path: path})
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
		// The last good version of a file that is bad runs on. Its new life begins when the file is good.
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
			Path: path, Pod: p.Pod, Object: p.Object, Field: p.Field, Message: p.Message + kept.Outcome(p, "the file"), SeenAt: began,
		})
	}
	for _, p := range result.Ignored {
		next.ignored = append(next.ignored, source.Error{Path: path, Pod: p.Pod, Field: p.Field, Message: p.Message, SeenAt: began})
	}
	var failure error
	if len(result.Problems) > 0 {
		failure = result.Problems[0]
	}
	telemetry.End(span, failure)
	s.files[path], s.causes[path], s.changed = next, ctx, true
	s.cfg.Metrics.taken(len(result.Problems) > 0)
}

// broken keeps what is known of a file that cannot be read, and reports why it cannot.
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

// unusable reports that something is in the place of a manifest which is none. What the manifest held is gone.
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

// forget takes in that a file is gone.
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

// newLife returns the life of a file that is made, or made again.
func (s *Source) newLife(path string) uint64 {
	delete(s.removed, path)
	s.lives++
	return s.lives
}

// beginRead begins the trace of a change.
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
