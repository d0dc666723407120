package configobjects

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/stream"
)

// askAgain is how often a configmux without objects is asked again, because another one may have been started: as often
// as a stream sends a heartbeat.
const askAgain = 10 * time.Second

// patient wraps a Source so that a publisher without a stream of objects looks like an empty stream. This is neither a
// loss nor a reason for a warning.
type patient struct {
	inner stream.Source[*Entry]
	clock clock.Clock
	// answered is called with the result of each subscription.
	answered func(error)
}

// Subscribe implements stream.Source.
func (p patient) Subscribe(ctx context.Context, token []byte) (stream.Subscription[*Entry], error) {
	inner, err := p.inner.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	return &patience{patient: p, ctx: ctx, inner: inner}, nil
}

// patience is a subscription of patient.
type patience struct {
	patient
	ctx   context.Context //nolint:containedctx // that of the subscription, which a new one inside it is made in
	inner stream.Subscription[*Entry]
	// begun is true if inner has returned a message, absent if the previous subscription was refused.
	begun, absent bool
}

// Next implements stream.Subscription.
func (s *patience) Next(ctx context.Context) (stream.Message[*Entry], error) {
	if s.absent {
		select {
		case <-ctx.Done():
			return stream.Message[*Entry]{}, ctx.Err()
		case <-s.clock.After(askAgain):
		}
		inner, err := s.patient.inner.Subscribe(s.ctx, nil)
		if err != nil {
			return stream.Message[*Entry]{}, err
		}
		s.inner.Close()
		s.inner = inner
	}
	m, err := s.inner.Next(ctx)
	if !s.begun && ctx.Err() == nil {
		s.answered(err)
	}
	switch {
	case err == nil:
		s.begun, s.absent = true, false
		return m, nil
	case s.begun || status.Code(err) != codes.Unimplemented:
		return m, err
	case s.absent:
		return stream.Message[*Entry]{Kind: stream.KindBookmark}, nil
	}
	s.absent = true
	return stream.Message[*Entry]{Kind: stream.KindOpened, Start: stream.StartSnapshot}, nil
}

// Close implements stream.Subscription.
func (s *patience) Close() { s.inner.Close() }
