// Package httpsource is the source "http": the pods that a server gives at staticPodURL.
//
// It asks at once at the start and then every httpCheckFrequency, and gives its full set of pods to a source.Sink. The
// answer is decoded by staticpod, as a file is. One goroutine asks, and waits for the answer before it asks again:
//
//	every httpCheckFrequency ──► GET ──► other bytes ──► decode ──► give the set
//	                              │  ├─► the same bytes ──► give the same set
//	                              │  └─► no bytes ──► give an empty set, and say so
//	                              └─► no whole answer ──► say why; what was known of it stays
//
// Nothing is removed because of an answer that is missing, cut off, too large or not to be parsed. Of one in which a pod
// is wrong, the others count, and the last good version of that pod runs on. A whole answer with status 200 and a body of
// no bytes is an empty set and an error, as to a kubelet; white space is an answer that cannot be parsed.
//
// There is nothing on disk: after a restart the source has not spoken until it has had an answer that says which pods are
// meant, and until then the pods that run are left alone.
//
// What the headers and the address have of secrets goes to the server that the address names and nowhere else: to no
// other host after a redirect, and into no error, log or trace.
package httpsource

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/privilege"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// Name is the name of this source.
const Name = "http"

const (
	// mode is how this source notices changes.
	mode = "polling"
	// loggedTimes is how often in a row the same failure is logged.
	loggedTimes = 3
	// emptyAnswer is what is wrong with an answer of no bytes.
	emptyAnswer = "the answer is empty, so that no pod is wanted any more: mend the server, or let it answer with a List with no items if no pod is meant"
)

// Config is what an HTTP source needs. All fields but Header and Standalone must be set.
type Config struct {
	// URL is where the pods are; http or https, with a host.
	URL *url.URL
	// Header is sent with each request.
	Header map[string][]string
	// Node is the node's name.
	Node string
	// Allowed says which sources' pods may reach beyond their own walls.
	Allowed privilege.Allowed
	// Standalone is true on a node without an API server, where the answer may have config maps and secrets too.
	Standalone bool
	// Period is the time between requests.
	Period time.Duration
	// Transport carries the requests; its idle connections are closed when Run ends.
	Transport *http.Transport
	Clock     clock.WithTicker
	Tracer    trace.Tracer
	Logger    *slog.Logger
	Metrics   *Metrics
}

// Source is the HTTP source. It implements source.Source.
type Source struct {
	cfg    Config
	client *client
	target string

	// sum is that of the last whole answer; only read when answered.
	sum      [sha256.Size]byte
	answered bool
	// held is what the source stands for: what is good in the last answer, and of what is broken in it the last good version.
	held staticpod.Held
	// spoken is true once an answer said which pods are meant.
	spoken bool
	// readAt is when such an answer came last.
	readAt time.Time
	// wrong is what is wrong with the last whole answer, and answeredAt when that came.
	wrong      []source.Error
	answeredAt time.Time
	// failure is why there was no whole answer the last time; empty when there was one.
	failure string

	// told is what was wrong the last time, and times how often in a row.
	told  string
	times int
}

// New returns the HTTP source. It does nothing before Run.
func New(cfg Config) *Source {
	return &Source{cfg: cfg, client: newClient(cfg.URL, cfg.Header, cfg.Transport), target: shown(cfg.URL)}
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source. It is the URL without what may be secret in it.
func (s *Source) Target() string { return s.target }

// Run implements source.Source. It never fails: whatever is wrong with the server is reported through the sink, and may
// be mended at any time.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	defer s.cfg.Transport.CloseIdleConnections()
	ticker := s.cfg.Clock.NewTicker(s.cfg.Period)
	defer ticker.Stop()
	for {
		began := s.cfg.Clock.Now()
		data, err := s.client.get(ctx)
		if ctx.Err() != nil {
			return nil
		}
		reading := s.take(ctx, began, data, err)
		s.tell(reading.Errors)
		sink.Set(Name, reading)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// take takes in one answer, or that there was none.
func (s *Source) take(ctx context.Context, began time.Time, data []byte, err error) source.Reading {
	causes := map[string]context.Context{}
	switch {
	case err != nil:
		s.cfg.Metrics.failed.Inc()
		if text := err.Error(); text != s.failure {
			causes[s.target] = s.trace(ctx, began, "unreadable", text)
			s.failure = text
		}
	case s.answered && sha256.Sum256(data) == s.sum:
		s.cfg.Metrics.unchanged.Inc()
		s.failure = ""
	default:
		s.cfg.Metrics.changed.Inc()
		s.failure = ""
		causes[s.target] = s.decode(ctx, began, data)
	}
	if s.failure == "" {
		s.answeredAt = began
		if s.spoken {
			s.readAt = s.cfg.Clock.Now()
		}
	}
	return s.reading(began, causes)
}

// decode takes in an answer that differs from the one before.
func (s *Source) decode(ctx context.Context, began time.Time, data []byte) context.Context {
	s.sum, s.answered, s.wrong = sha256.Sum256(data), true, nil
	if len(data) == 0 {
		s.held, s.spoken = staticpod.Held{}, true
		s.blame(staticpod.Problem{Message: emptyAnswer}, "")
		return s.trace(ctx, began, "empty", emptyAnswer)
	}
	result := staticpod.Decode(data, staticpod.Origin{Source: Name, Allowed: s.cfg.Allowed, Node: s.cfg.Node, Standalone: s.cfg.Standalone, Path: s.target})
	failure := ""
	if len(result.Problems) > 0 {
		failure = s.client.scrub(result.Problems[0].Error())
	}
	if result.Incomplete && !s.spoken {
		// Which pods are meant is not known, and those that run may be among them.
		for _, p := range result.Problems {
			s.blame(p, "; nothing of the answer is taken, and what runs is left alone: mend the answer")
		}
		return s.trace(ctx, began, "unreadable", failure)
	}
	held, lastGood := result.WithLastGood(s.held)
	for _, p := range result.Problems {
		s.blame(p, lastGood.Outcome(p, "the answer"))
	}
	for _, p := range result.Ignored {
		s.blame(p, "")
	}
	kept, rejected := podset.Filter(held.Pods)
	for _, r := range rejected {
		s.blame(staticpod.Problem{Pod: r.Pod.Namespace + "/" + r.Pod.Name, Field: r.Field, Message: r.Reason},
			"; this one is left out: remove one of the two, or rename it")
	}
	objects, repeated := apiobject.Filter(held.Objects)
	for _, r := range repeated {
		s.blame(staticpod.Problem{Object: held.Objects[r.Index].String(), Field: "metadata.name", Message: "it is already given"},
			"; this one is left out: remove one of the two, or rename it")
	}
	s.held, s.spoken = staticpod.Held{Pods: kept, Objects: objects}, true
	return s.trace(ctx, began, "invalid", failure)
}

// blame notes one thing that is wrong with the answer.
func (s *Source) blame(p staticpod.Problem, outcome string) {
	s.wrong = append(s.wrong, source.Error{
		Path: s.target, Pod: p.Pod, Object: p.Object, Field: p.Field, Message: s.client.scrub(p.Message) + outcome,
	})
}

// reading is what the source stands for now.
func (s *Source) reading(began time.Time, causes map[string]context.Context) source.Reading {
	reading := source.Reading{Failed: s.failure != "" || !s.spoken, ReadAt: s.readAt, Mode: mode, Causes: causes}
	for _, e := range s.wrong {
		e.SeenAt = s.answeredAt
		reading.Errors = append(reading.Errors, e)
	}
	if s.failure != "" {
		kept := "what was known of it is kept"
		if !s.spoken {
			kept = "nothing is known of it yet, and what runs is left alone"
		}
		reading.Errors = append(reading.Errors, source.Error{
			Path: s.target, SeenAt: began, Message: fmt.Sprintf("cannot read it: %s; %s", s.failure, kept),
		})
	}
	if reading.Failed {
		return reading
	}
	for _, pod := range s.held.Pods {
		reading.Pods = append(reading.Pods, source.Pod{Pod: pod, Path: s.target})
	}
	for _, object := range s.held.Objects {
		reading.Objects = append(reading.Objects, source.Object{Object: object, Path: s.target})
	}
	return reading
}

// tell logs what is wrong the second and the third time in a row. The mux logs what is new and what has been mended.
func (s *Source) tell(errs []source.Error) {
	var all strings.Builder
	for _, e := range errs {
		fmt.Fprintf(&all, "%q %q %q %q\n", e.Pod, e.Object, e.Field, e.Message)
	}
	if text := all.String(); text != s.told {
		s.told, s.times = text, 1
		return
	}
	if s.times++; s.times > loggedTimes {
		s.times = loggedTimes // it is logged no more
		return
	}
	for _, e := range errs {
		s.cfg.Logger.Warn(e.Message, telemetry.KeySource, Name, telemetry.KeyFile, e.Path, telemetry.KeyPod, e.Pod, telemetry.KeyObject, e.Object, "field", e.Field, "times", s.times)
	}
}

// trace makes the trace of a change: of a good answer when failure is empty.
func (s *Source) trace(ctx context.Context, began time.Time, kind, failure string) context.Context {
	ctx, span := s.cfg.Tracer.Start(ctx, "source.read", trace.WithNewRoot(), trace.WithTimestamp(began))
	defer span.End()
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrURL.String(s.target), telemetry.AttrSource.String(Name))
	}
	if failure != "" {
		telemetry.FailWith(span, kind, failure)
	}
	return ctx
}
