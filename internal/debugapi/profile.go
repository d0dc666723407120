package debugapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
)

const (
	minDuration     = time.Second
	maxDuration     = 5 * time.Minute
	defaultDuration = 10 * time.Second
	// everyEvent is the rate at which the profiles of mutexes and of waiting record each event.
	everyEvent = 1
)

// Profile implements DebugServiceServer.
func (s *Server) Profile(
	req *debugv1.ProfileRequest, stream grpc.ServerStreamingServer[debugv1.ProfileResponse],
) error {
	length, err := lengthOf(req)
	if err != nil {
		return err
	}
	select {
	case s.profiling <- struct{}{}:
	default:
		return status.Error(codes.ResourceExhausted, "another profile is being taken: try again when it has ended")
	}
	ctx := stream.Context()
	out := newSpool(maxUnsent)
	// It ends with the duration or with ctx, and never waits for the caller, who may hang.
	go func() {
		defer func() { <-s.profiling }()
		out.end(s.take(ctx, req.GetKind(), length, out))
	}()
	return send(ctx, out, func(data []byte) error { return stream.Send(&debugv1.ProfileResponse{Data: data}) })
}

// send sends what is written to a spool, in chunks.
func send(ctx context.Context, from *spool, to func([]byte) error) error {
	for {
		data, err := from.next(ctx)
		switch {
		case errors.Is(err, errTooSlow):
			return status.Error(codes.ResourceExhausted, err.Error())
		case err != nil && ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		case err != nil:
			return status.Error(codes.ResourceExhausted, err.Error())
		case len(data) == 0:
			return nil
		}
		for len(data) > 0 {
			n := min(len(data), chunkSize)
			if err := to(data[:n]); err != nil {
				return err
			}
			data = data[n:]
		}
	}
}

// lengthOf returns the duration of a profile; 0 if its kind has none.
func lengthOf(req *debugv1.ProfileRequest) (time.Duration, error) {
	switch req.GetKind() {
	case debugv1.ProfileKind_PROFILE_KIND_HEAP, debugv1.ProfileKind_PROFILE_KIND_ALLOCS,
		debugv1.ProfileKind_PROFILE_KIND_GOROUTINE:
		if req.GetDuration() != nil {
			return 0, status.Errorf(codes.InvalidArgument, "duration: %v has none: leave it out", req.GetKind())
		}
		return 0, nil
	case debugv1.ProfileKind_PROFILE_KIND_CPU, debugv1.ProfileKind_PROFILE_KIND_MUTEX,
		debugv1.ProfileKind_PROFILE_KIND_BLOCK, debugv1.ProfileKind_PROFILE_KIND_TRACE:
		if req.GetDuration() == nil {
			return defaultDuration, nil
		}
		return bounded(req.GetDuration(), maxDuration)
	case debugv1.ProfileKind_PROFILE_KIND_UNSPECIFIED:
	}
	return 0, status.Errorf(codes.InvalidArgument, "kind: %d is unknown to this version", req.GetKind())
}

// bounded returns a duration that is at least minDuration and at most limit.
func bounded(d *durationpb.Duration, limit time.Duration) (time.Duration, error) {
	if length := d.AsDuration(); d.IsValid() && length >= minDuration && length <= limit {
		return length, nil
	}
	return 0, status.Errorf(codes.InvalidArgument, "duration: %v must be from %v to %v", d.AsDuration(), minDuration, limit)
}

// take writes a profile. Lengthy kinds end early when ctx ends or the spool overflows.
func (s *Server) take(ctx context.Context, kind debugv1.ProfileKind, length time.Duration, out *spool) error {
	switch kind {
	case debugv1.ProfileKind_PROFILE_KIND_CPU:
		if err := pprof.StartCPUProfile(out); err != nil {
			return busy(err)
		}
		defer pprof.StopCPUProfile()
		return s.during(ctx, length, out)
	case debugv1.ProfileKind_PROFILE_KIND_TRACE:
		if err := trace.Start(out); err != nil {
			return busy(err)
		}
		defer trace.Stop()
		return s.during(ctx, length, out)
	case debugv1.ProfileKind_PROFILE_KIND_MUTEX:
		defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(everyEvent))
		if err := s.during(ctx, length, out); err != nil {
			return err
		}
		return write("mutex", out)
	case debugv1.ProfileKind_PROFILE_KIND_BLOCK:
		runtime.SetBlockProfileRate(everyEvent)
		defer runtime.SetBlockProfileRate(s.cfg.BlockProfileRate)
		if err := s.during(ctx, length, out); err != nil {
			return err
		}
		return write("block", out)
	case debugv1.ProfileKind_PROFILE_KIND_HEAP:
		return write("heap", out)
	case debugv1.ProfileKind_PROFILE_KIND_ALLOCS:
		return write("allocs", out)
	case debugv1.ProfileKind_PROFILE_KIND_GOROUTINE:
		return write("goroutine", out)
	case debugv1.ProfileKind_PROFILE_KIND_UNSPECIFIED:
	}
	return fmt.Errorf("the kind %v is unknown", kind) // lengthOf has refused it
}

// during waits for the end of a profile. It fails when ctx ends or the spool overflows.
func (s *Server) during(ctx context.Context, length time.Duration, out *spool) error {
	end := s.cfg.Clock.NewTimer(length)
	defer end.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-out.overflown:
		return errTooSlow
	case <-end.C():
		return nil
	}
}

// busy explains why a profiler that the process has once could not be started.
func busy(err error) error {
	return fmt.Errorf("another client profiles this process, for example by the HTTP API of syncloop: %w", err)
}

// write writes a profile of the Go runtime in the format of go tool pprof.
func write(name string, to io.Writer) error { return pprof.Lookup(name).WriteTo(to, 0) }
