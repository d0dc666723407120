package apisource

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// reading returns the reading for some pods, or for all.
func (s *Source) reading(op podset.Op, pods []*v1.Pod, causes map[string]context.Context) source.Reading {
	reading := source.Reading{Op: op, ReadAt: s.listedAt, Mode: s.mode, Errors: s.wrong(), Causes: causes}
	for _, pod := range pods {
		reading.Pods = append(reading.Pods, source.Pod{Pod: pod, Path: pathOf(s.Target(), pod)})
	}
	return reading
}

// failed returns the reading for changed errors without a change of a pod.
func (s *Source) failed() source.Reading {
	return source.Reading{Failed: true, Mode: s.mode, Errors: s.wrong()}
}

// corrected returns the reading for changed errors of pods only.
func (s *Source) corrected() source.Reading {
	if !s.listed || len(s.failures) > 0 {
		return s.failed()
	}
	return s.reading(podset.Update, nil, nil)
}

// wrong returns all present problems.
func (s *Source) wrong() []source.Error {
	var out []source.Error
	for _, v := range verbs {
		if failure := s.failures[v]; failure != nil {
			shown := *failure
			shown.Message += "; " + s.kept()
			out = append(out, shown)
		}
	}
	for _, e := range []*source.Error{s.damaged, s.unsaved} {
		if e != nil {
			out = append(out, *e)
		}
	}
	return append(out, s.pods.wrong()...)
}

// cause returns the trace of a change from the API server; none if nothing has changed.
func (s *Source) cause(ctx context.Context, n news, c change) map[string]context.Context {
	if !c.any {
		return nil
	}
	return map[string]context.Context{s.Target(): s.trace(ctx, n.began, telemetry.AttrURL.String(s.Target()), "")}
}

// trace creates the trace of a change; failure is empty for a successful request.
func (s *Source) trace(ctx context.Context, began time.Time, from attribute.KeyValue, failure string) context.Context {
	ctx, span := s.cfg.Tracer.Start(ctx, "source.read", trace.WithNewRoot(), trace.WithTimestamp(began))
	defer span.End()
	if span.IsRecording() {
		span.SetAttributes(from, telemetry.AttrSource.String(Name))
	}
	if failure != "" {
		telemetry.FailWith(span, "unreadable", failure)
	}
	return ctx
}
