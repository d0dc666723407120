// Package debugapi serves quartet.debug.v1.DebugService, with which a user of the role admin looks into a running
// process: profiles, goroutines, memory, the log level, and calls of the container runtime. Each of the four processes
// serves it beside its own service.
//
// A profile is taken by the Go runtime, which must not wait, and is sent to a caller, who may be slow. So the bytes
// pass through a spool of bounded size.
package debugapi

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/debug"
	"runtime/pprof"

	"google.golang.org/grpc"
	channelz "google.golang.org/grpc/channelz/service"
	"google.golang.org/grpc/reflection"
	"k8s.io/utils/clock"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/runtimecalls"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// allStacks is the format of a goroutine profile with the stack of each goroutine, and how long it has waited.
const allStacks = 2

// Config holds the parameters of New.
type Config struct {
	// Logger is the logger of the process. SetLogLevel changes its verbosity.
	Logger *slog.Logger
	// Clock times profiles and limited log levels.
	Clock clock.WithDelayedExecution
	// BlockProfileRate is the rate of runtime.SetBlockProfileRate while no profile is taken.
	BlockProfileRate int
	// RuntimeCalls has the calls of the container runtime; nil in a process that makes none.
	RuntimeCalls *runtimecalls.Tap
	// PLEGRecord returns what pleg knows, for a recording of the calls that end from now on; nil in other processes. It
	// fails with the error of ctx.
	PLEGRecord func(ctx context.Context) ([]*debugv1.PLEGRecord, error)
}

// Server implements DebugService.
type Server struct {
	debugv1.UnimplementedDebugServiceServer

	cfg   Config
	level *level
	// profiling has a capacity of one: it is full while a profile is taken.
	profiling chan struct{}
}

// New returns the server of a process.
func New(cfg Config) *Server {
	return &Server{
		cfg: cfg, profiling: make(chan struct{}, 1),
		level: &level{clock: cfg.Clock, logger: cfg.Logger, verbosity: telemetry.VerbosityOf(cfg.Logger)},
	}
}

// With returns a function that registers, besides the services of a process, its DebugService, and gRPC's own services
// for generic clients: the contracts (reflection) and the connections (channelz).
func With(cfg Config, register func(*grpc.Server)) func(*grpc.Server) {
	return func(s *grpc.Server) {
		register(s)
		debugv1.RegisterDebugServiceServer(s, New(cfg))
		reflection.RegisterV1(s)
		channelz.RegisterChannelzServiceToServer(s)
	}
}

// DumpGoroutines implements DebugServiceServer.
func (s *Server) DumpGoroutines(
	_ *debugv1.DumpGoroutinesRequest, stream grpc.ServerStreamingServer[debugv1.DumpGoroutinesResponse],
) error {
	out := newSpool(maxUnsent + chunkSize) // the Go runtime ends the text at maxUnsent
	out.end(pprof.Lookup("goroutine").WriteTo(out, allStacks))
	return send(stream.Context(), out, func(text []byte) error {
		return stream.Send(&debugv1.DumpGoroutinesResponse{Text: text})
	})
}

// FreeMemory implements DebugServiceServer.
func (s *Server) FreeMemory(context.Context, *debugv1.FreeMemoryRequest) (*debugv1.FreeMemoryResponse, error) {
	before := memory()
	debug.FreeOSMemory()
	return &debugv1.FreeMemoryResponse{Before: before, After: memory()}, nil
}

func memory() *debugv1.Memory {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return &debugv1.Memory{HeapBytes: stats.HeapAlloc, HeldBytes: stats.Sys - stats.HeapReleased}
}
