// Package replay is the source of a configmux with --replay: it replays the stream that a recorded configmux sent to a
// node, message by message. It is then the only source, so that the result depends only on the recording.
//
// Each message of the recording becomes a reading of this source, in the same order and at the same pace. A snapshot
// becomes one reading when it is complete, also if the stream restarted in the middle. Nothing is sent before a
// recorded source was ready, because a node without desired pods would remove its running ones.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"

	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/recording"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// Name is the name of the source. The annotation of its pods distinguishes them from those of a node's own sources.
const Name = "replay"

// The modes of the source, for people.
const (
	modeReplaying = "replaying"
	modeEnded     = "replayed to its end"
)

// Config holds the parameters of a replay; all fields are required.
type Config struct {
	// Path is the path of the recording.
	Path string
	// Speed is the speed relative to the recording; 0 means without delays.
	Speed  float64
	Clock  clock.Clock
	Tracer trace.Tracer
	Logger *slog.Logger
}

// Source replays one recording, and keeps its final state.
type Source struct {
	cfg   Config
	state state
	// first is the time of the first message, and began the time of its replay.
	first, began time.Time
}

// New returns a source. It reads nothing before Run.
func New(cfg Config) *Source { return &Source{cfg: cfg} }

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Target implements source.Source.
func (s *Source) Target() string { return s.cfg.Path }

// Run implements source.Source. It reads the whole recording once before it replays anything, so that a damaged
// recording ends the process at the start.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	file, err := open(s.cfg.Path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read
	messages, err := s.each(ctx, file, func(recording.Message) error { return nil })
	if err != nil {
		return ended(ctx, err)
	}
	s.cfg.Logger.Warn("replaying a recording; no other source of pods is read",
		telemetry.KeySource, Name, telemetry.KeyFile, s.cfg.Path, "messages", messages, "speed", s.cfg.Speed)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the recording %s again: %w", s.cfg.Path, err)
	}
	if _, err := s.each(ctx, file, func(m recording.Message) error { return s.play(ctx, sink, m) }); err != nil {
		return ended(ctx, err)
	}
	// In a recording without a ready source, the node received no set, and neither does this one.
	if s.state.ready {
		sink.Set(Name, s.reading(modeEnded))
	}
	s.cfg.Logger.Info("the recording has ended; its last pods stay desired",
		telemetry.KeySource, Name, telemetry.KeyFile, s.cfg.Path, "pods", len(s.state.pods), "ready", s.state.ready)
	<-ctx.Done()
	return nil
}

// ended maps the end of the process to nil.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func open(path string) (*os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the recording of --replay: %w", err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file: name a file that 'quartet updates record' has written", path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// each calls do for each message of a recording, and returns their number.
func (s *Source) each(ctx context.Context, in io.Reader, do func(recording.Message) error) (int, error) {
	r, err := recording.NewReader(in, s.cfg.Path)
	if err != nil {
		return 0, err
	}
	for n := 0; ; n++ {
		m, err := r.Next()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = do(m)
		}
		if err != nil {
			return n, err
		}
	}
}

// play replays one message when it is due.
func (s *Source) play(ctx context.Context, sink source.Sink, m recording.Message) error {
	if err := s.wait(ctx, m.Time); err != nil {
		return err
	}
	if !s.state.apply(m) {
		return nil
	}
	reading := s.reading(modeReplaying)
	if m.Pod != nil || m.Update.GetFrame().GetKind() == streamv1.Kind_KIND_SYNCED {
		// A removal has no pod in the reading: its cause is found because it is the only one.
		reading.Causes = map[string]context.Context{s.place(m.Line): s.read(ctx, m)}
	}
	sink.Set(Name, reading)
	return nil
}

// wait waits until the message of a recorded time is due. It does not wait for messages with a time before the first
// one, which occur if the clock of the recorded node was set back.
func (s *Source) wait(ctx context.Context, at time.Time) error {
	if s.first.IsZero() {
		s.first, s.began = at, s.cfg.Clock.Now()
		return nil
	}
	if s.cfg.Speed == 0 {
		return nil
	}
	after := math.Min(float64(at.Sub(s.first))/s.cfg.Speed, math.MaxInt64/2)
	left := time.Duration(after) - s.cfg.Clock.Since(s.began)
	if left <= 0 {
		return nil
	}
	timer := s.cfg.Clock.NewTimer(left)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}

// reading returns the present full set.
func (s *Source) reading(mode string) source.Reading {
	reading := source.Reading{ReadAt: s.cfg.Clock.Now(), Mode: mode}
	for _, k := range s.state.list() {
		reading.Pods = append(reading.Pods, source.Pod{Pod: k.pod, Path: s.place(k.line)})
	}
	return reading
}

// read starts the trace of a message, with a link to the recorded one.
func (s *Source) read(ctx context.Context, m recording.Message) context.Context {
	ctx, span := s.cfg.Tracer.Start(ctx, "source.read", trace.WithNewRoot())
	defer span.End()
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrFile.String(s.place(m.Line)), telemetry.AttrSource.String(Name))
	}
	telemetry.LinkTo(span, m.Update.GetPod().GetTraceparent())
	return ctx
}

// place returns the file and line of a message, for people.
func (s *Source) place(line int) string { return fmt.Sprintf("%s:%d", s.cfg.Path, line) }
