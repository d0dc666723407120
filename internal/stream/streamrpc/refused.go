package streamrpc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/stream"
)

// UntilRefused returns a source for a command: it fails with a *stream.RefusedError when the other process answers that
// it will never serve this caller, so that the command ends instead of waiting for ever. explain returns the error for
// people, see Refusal.
func UntilRefused[V any](src stream.Source[V], explain func(error) error) stream.Source[V] {
	return refusable[V]{src, explain}
}

type refusable[V any] struct {
	inner   stream.Source[V]
	explain func(error) error
}

// Subscribe implements stream.Source.
func (r refusable[V]) Subscribe(ctx context.Context, token []byte) (stream.Subscription[V], error) {
	sub, err := r.inner.Subscribe(ctx, token)
	if err != nil {
		return nil, r.translate(err)
	}
	return refusableSubscription[V]{sub, r.translate}, nil
}

// translate returns a *stream.RefusedError for an error that trying again does not mend, and other errors as they are.
func (r refusable[V]) translate(err error) error {
	switch status.Code(err) { //nolint:exhaustive // the others may pass
	case codes.PermissionDenied, codes.FailedPrecondition, codes.Unimplemented:
		return &stream.RefusedError{Err: r.explain(err)}
	default:
		return err
	}
}

type refusableSubscription[V any] struct {
	stream.Subscription[V]
	translate func(error) error
}

// Next implements stream.Subscription.
func (s refusableSubscription[V]) Next(ctx context.Context) (stream.Message[V], error) {
	m, err := s.Subscription.Next(ctx)
	if err != nil {
		return m, s.translate(err)
	}
	return m, nil
}

// Refusal explains why a service does not give a stream.
func Refusal(service layout.Service, stream string) func(error) error {
	return func(err error) error {
		if status.Code(err) == codes.Unimplemented {
			return fmt.Errorf("%s does not have the stream of %s: it is of an earlier version: upgrade it, or use a program of "+
				"its version", service, stream)
		}
		message := err.Error()
		if answer := (interface{ GRPCStatus() *status.Status })(nil); errors.As(err, &answer) {
			message = answer.GRPCStatus().Message()
		}
		return fmt.Errorf("%s refuses the stream of %s: %s", service, stream, message)
	}
}
