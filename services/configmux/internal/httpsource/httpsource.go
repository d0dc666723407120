// Package httpsource is the source "http": the pods that a server returns at staticPodURL.
//
// It sends a request at the start and then every httpCheckFrequency, and passes its full set of pods to a source.Sink.
// staticpod decodes the response, as it does a file. One goroutine sends the requests, one at a time:
//
//	every httpCheckFrequency ──► GET ──► other bytes ──► decode ──► pass the set
//	                              │  ├─► the same bytes ──► pass the same set
//	                              │  └─► no bytes ──► pass an empty set, with an error
//	                              └─► no complete response ──► report why; the last set stays
//
// No pod is removed because of a response that is missing, cut off, too large or cannot be parsed. If a pod in a
// response is invalid, the others are used, and its last good version continues to run. A complete response with status
// 200 and an empty body is an empty set and an error, as for the kubelet; white space is a response that cannot be
// parsed.
//
// Nothing is stored on disk: after a restart the source is not ready until a response has named the desired pods, and
// until then running pods are not changed.
//
// Secrets in the headers and the address are sent only to the server of the address: to no other host after a redirect,
// and they do not appear in errors, logs or traces.
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
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// Name is the name of this source.
const Name = "http"

const (
	// mode is the mode of noticing changes.
	mode = "polling"
	// loggedTimes is the number of consecutive times that the same failure is logged.
	loggedTimes = 3
	// emptyAnswer is the error of an empty response.
	emptyAnswer = "the answer is empty, so no pod is desired any more: correct the server, or let it answer with an empty List if that is intended"
)

// Config holds the parameters of an HTTP source. All fields except Header and Standalone are required.
type Config struct {
	// URL is the address of the pods; http or https, with a host.
	URL *url.URL
	// Header is sent with each request.
	Header map[string][]string
	// Node is the node's name.
	Node string
	// Allowed lists the sources whose pods may have access to the host.
	Allowed privilege.Allowed
	// Standalone is true for a node without an API server, where the response may contain config maps and secrets too.
	Standalone bool
	// Period is the interval of requests.
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
	steps  *watchdog.Steps
	client *client
	target string

	// sum is the checksum of the last complete response; valid if answered is true.
	sum      [sha256.Size]byte
	answered bool
	// held is the effective set: the valid parts of the last response, and the last good version of the broken ones.
	held staticpod.Held
	// known is true after a response has named the desired pods.
	known bool
	// readAt is the time of the last such response.
	readAt time.Time
	// wrong lists the problems with the last complete response, and answeredAt is its time.
	wrong      []source.Error
	answeredAt time.Time
	// failure is why the last request had no complete response; empty if it had one.
	failure string

	// lastProblem is the last problem, and times its number of consecutive occurrences.
	lastProblem string
	times       int
}

// New returns the HTTP source. It does nothing before Run.
func New(cfg Config) *Source {
	return &Source{
		cfg: cfg, steps: watchdog.NewSteps(cfg.Clock, 0),
		client: newClient(cfg.URL, cfg.Header, cfg.Transport), target: shown(cfg.URL),
	}
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source. It is the URL without secret parts.
func (s *Source) Target() string { return s.target }

// Stands returns why the loop of the source stands still; nil if it turns, or waits for an answer.
func (s *Source) Stands() error { return s.steps.Stands() }

// Run implements source.Source. It never fails: problems with the server are reported through the sink, and may be
// solved at any time.
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
		s.steps.Do(func() {
			reading := s.take(ctx, began, data, err)
			s.logRepeated(reading.Errors)
			sink.Set(Name, reading)
		})
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// take processes one response, or its error.
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
		if s.known {
			s.readAt = s.cfg.Clock.Now()
		}
	}
	return s.reading(began, causes)
}

// decode processes a response that differs from the previous one.
func (s *Source) decode(ctx context.Context, began time.Time, data []byte) context.Context {
	s.sum, s.answered, s.wrong = sha256.Sum256(data), true, nil
	if len(data) == 0 {
		s.held, s.known = staticpod.Held{}, true
		s.blame(staticpod.Problem{Message: emptyAnswer}, "")
		return s.trace(ctx, began, "empty", emptyAnswer)
	}
	result := staticpod.Decode(
		data,
		staticpod.Origin{
			Source:     Name,
			Allowed:    s.cfg.Allowed,
			Node:       s.cfg.Node,
			Standalone: s.cfg.Standalone,
			Path:       s.target,
		},
	)
	failure := ""
	if len(result.Problems) > 0 {
		failure = s.client.scrub(result.Problems[0].Error())
	}
	if result.Incomplete && !s.known {
		// The desired pods are unknown, and the running ones may be among them.
		for _, p := range result.Problems {
			s.blame(p, "; the answer is rejected, and running pods are not changed: correct the answer")
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
		s.blame(
			staticpod.Problem{Object: held.Objects[r.Index].String(), Field: "metadata.name", Message: "it is already given"},
			"; this one is left out: remove one of the two, or rename it",
		)
	}
	s.held, s.known = staticpod.Held{Pods: kept, Objects: objects}, true
	return s.trace(ctx, began, "invalid", failure)
}

// blame records one problem with the response.
func (s *Source) blame(p staticpod.Problem, outcome string) {
	s.wrong = append(s.wrong, source.Error{
		Path: s.target, Pod: p.Pod, Object: p.Object, Field: p.Field, Message: s.client.scrub(p.Message) + outcome,
	})
}

// reading returns the reading for the present state.
func (s *Source) reading(began time.Time, causes map[string]context.Context) source.Reading {
	reading := source.Reading{Failed: s.failure != "" || !s.known, ReadAt: s.readAt, Mode: mode, Causes: causes}
	for _, e := range s.wrong {
		e.SeenAt = s.answeredAt
		reading.Errors = append(reading.Errors, e)
	}
	if s.failure != "" {
		kept := "its last known pods are kept"
		if !s.known {
			kept = "none of its pods is known yet, and running pods are not changed"
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

// logRepeated logs the second and the third consecutive occurrence of a problem. The mux logs new and solved problems.
func (s *Source) logRepeated(errs []source.Error) {
	var all strings.Builder
	for _, e := range errs {
		fmt.Fprintf(&all, "%q %q %q %q\n", e.Pod, e.Object, e.Field, e.Message)
	}
	if text := all.String(); text != s.lastProblem {
		s.lastProblem, s.times = text, 1
		return
	}
	if s.times++; s.times > loggedTimes {
		s.times = loggedTimes // it is not logged any more
		return
	}
	for _, e := range errs {
		s.cfg.Logger.Warn(e.Message, telemetry.KeySource, Name, telemetry.KeyFile, e.Path, telemetry.KeyPod, e.Pod,
			telemetry.KeyObject, e.Object, "field", e.Field, "times", s.times)
	}
}

// trace creates the trace of a change; failure is empty for a valid response.
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
