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

// reading is what the sink is told of some pods, or of all.
func (s *Source) reading(op podset.Op, pods []*v1.Pod, causes map[string]context.Context) source.Reading {
	reading := source.Reading{Op: op, ReadAt: s.listedAt, Mode: s.mode, Errors: s.wrong(), Causes: causes}
	for _, pod := range pods {
		reading.Pods = append(reading.Pods, source.Pod{Pod: pod, Path: pathOf(s.target, pod)})
	}
	return reading
}

// failed is what the sink is told when there is nothing new of any pod: what is wrong, and what is not wrong any more.
func (s *Source) failed() source.Reading {
	return source.Reading{Failed: true, Mode: s.mode, Errors: s.wrong()}
}

// corrected is what the sink is told when only what is wrong has changed: that no pod has.
func (s *Source) corrected() source.Reading {
	if !s.listed || len(s.failures) > 0 {
		return s.failed()
	}
	return s.reading(podset.Update, nil, nil)
}

// wrong is everything that is wrong now.
func (s *Source) wrong() []source.Error {
	var out []source.Error
	for _, v := range verbs {
		if failure := s.failures[v]; failure != nil {
			out = append(out, *failure)
		}
	}
	for _, e := range []*source.Error{s.damaged, s.unsaved} {
		if e != nil {
			out = append(out, *e)
		}
	}
	return append(out, s.pods.wrong()...)
}

// cause is the trace of a change that the API server told of; there is none when nothing has changed.
func (s *Source) cause(ctx context.Context, n news, c change) map[string]context.Context {
	if !c.any {
		return nil
	}
	return map[string]context.Context{s.target: s.trace(ctx, n.began, telemetry.AttrURL.String(s.target), "")}
}

// trace makes the trace of a change: of a good answer when failure is empty.
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
