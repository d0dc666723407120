package debugapi

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/utils/clock"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/logging"
	"github.com/quartet-node/quartet/internal/rpc"
)

// maxLevelTime is the longest time limit of a log level.
const maxLevelTime = 24 * time.Hour

// level changes the verbosity of the process, and returns to the configured one after a time limit.
type level struct {
	clock     clock.WithDelayedExecution
	logger    *slog.Logger
	verbosity *logging.Verbosity

	mu sync.Mutex
	// until is the end of the time limit, and timer acts then; zero and nil without a limit.
	until time.Time
	timer clock.Timer
}

// GetLogLevel implements DebugServiceServer.
func (s *Server) GetLogLevel(context.Context, *debugv1.GetLogLevelRequest) (*debugv1.GetLogLevelResponse, error) {
	return &debugv1.GetLogLevelResponse{Level: s.level.get()}, nil
}

// SetLogLevel implements DebugServiceServer.
func (s *Server) SetLogLevel(
	ctx context.Context, req *debugv1.SetLogLevelRequest,
) (*debugv1.SetLogLevelResponse, error) {
	verbosity := s.level.verbosity.Configured()
	if req.Verbosity != nil {
		verbosity = int(req.GetVerbosity())
	}
	if verbosity < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "verbosity: %d must be 0 or more", verbosity)
	}
	var limit time.Duration
	if req.GetDuration() != nil {
		if req.Verbosity == nil {
			return nil, status.Error(codes.InvalidArgument, "duration: the configured verbosity has no time limit: leave it out")
		}
		var err error
		if limit, err = bounded(req.GetDuration(), maxLevelTime); err != nil {
			return nil, err
		}
	}
	s.level.set(ctx, verbosity, limit)
	return &debugv1.SetLogLevelResponse{Level: s.level.get()}, nil
}

func (l *level) get() *debugv1.LogLevel {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := &debugv1.LogLevel{
		Verbosity: int32(l.verbosity.Get()), Configured: int32(l.verbosity.Configured()), //nolint:gosec // both were an int32
	}
	if !l.until.IsZero() {
		out.Until = timestamppb.New(l.until)
	}
	return out
}

// set changes the verbosity, for a limited time unless limit is 0.
func (l *level) set(ctx context.Context, verbosity int, limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer, l.until = nil, time.Time{}
	attrs := []any{"verbosity", verbosity, "before", l.verbosity.Get(), "configured", l.verbosity.Configured()}
	if uid, known := rpc.PeerUID(ctx); known {
		attrs = append(attrs, "uid", uid)
	}
	if names, remote := rpc.PeerNames(ctx); remote {
		attrs = append(attrs, "names", names)
	}
	if limit > 0 && verbosity != l.verbosity.Configured() {
		until := l.clock.Now().Add(limit)
		l.until = until
		l.timer = l.clock.AfterFunc(limit, func() { l.expire(until) })
		attrs = append(attrs, "until", until)
	}
	l.verbosity.Set(verbosity)
	l.logger.InfoContext(ctx, "the log level was changed", attrs...)
}

// expire returns to the configured verbosity, unless a later call has replaced the time limit.
func (l *level) expire(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.until.Equal(until) {
		return
	}
	before := l.verbosity.Get()
	l.timer, l.until = nil, time.Time{}
	l.verbosity.Set(l.verbosity.Configured())
	l.logger.Info("the time limit of the log level has passed", "verbosity", l.verbosity.Configured(), "before", before)
}
