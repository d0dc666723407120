package debugapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/channelz/grpc_channelz_v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	clocktesting "k8s.io/utils/clock/testing"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/logging"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/runtimecalls"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// begun is the time at which the clocks of the tests start.
var begun = time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)

// rig is a served DebugService and its client.
type rig struct {
	debugv1.DebugServiceClient

	conn  *grpc.ClientConn
	clock *clocktesting.FakeClock
	log   *logbuffer.Buffer
	// logger is that of the process.
	logger *slog.Logger
}

func serve(t *testing.T) *rig {
	t.Helper()
	return serveCalls(t, nil)
}

// serveCalls serves the calls of the runtime that a Tap takes.
func serveCalls(t *testing.T, tap *runtimecalls.Tap) *rig {
	t.Helper()
	r := &rig{clock: clocktesting.NewFakeClock(begun), log: &logbuffer.Buffer{}}
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{
		Service: "pleg", Output: r.log, Logging: logging.Config{Verbosity: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.logger = tel.Logger
	address := "unix://" + filepath.Join(t.TempDir(), "s.sock")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: address, Health: rpc.NewHealth(), Logger: r.logger,
			Register: With(Config{Logger: r.logger, Clock: r.clock, RuntimeCalls: tap}, func(*grpc.Server) {}),
		})
	}()
	if r.conn, err = rpc.Dial(address); err != nil {
		t.Fatal(err)
	}
	r.DebugServiceClient = debugv1.NewDebugServiceClient(r.conn)
	t.Cleanup(func() {
		cancel()
		err := r.conn.Close()
		if status.Code(err) == codes.Canceled {
			err = nil // the test has closed it
		}
		if err := errors.Join(<-done, err); err != nil {
			t.Error(err)
		}
	})
	return r
}

// profile takes a profile and returns all of it.
func (r *rig) profile(ctx context.Context, kind debugv1.ProfileKind, length time.Duration) ([]byte, error) {
	req := &debugv1.ProfileRequest{Kind: kind}
	if length != 0 {
		req.Duration = durationpb.New(length)
	}
	stream, err := r.Profile(ctx, req, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, chunk.GetData()...)
	}
}

// begins waits until a profile with a duration is being taken.
func (r *rig) begins(t *testing.T) {
	t.Helper()
	eventually.That(t, "a profile begins", r.clock.HasWaiters)
}

// free waits until no profile is being taken.
func (r *rig) free(t *testing.T) {
	t.Helper()
	eventually.That(t, "the next profile can be taken", func() bool {
		_, err := r.profile(t.Context(), debugv1.ProfileKind_PROFILE_KIND_GOROUTINE, 0)
		return err == nil
	})
}

func TestEachKindIsTaken(t *testing.T) {
	r := serve(t)
	for kind, want := range map[debugv1.ProfileKind]struct {
		lengthy bool
		begins  string
	}{
		debugv1.ProfileKind_PROFILE_KIND_CPU:       {true, "\x1f\x8b"},
		debugv1.ProfileKind_PROFILE_KIND_MUTEX:     {true, "\x1f\x8b"},
		debugv1.ProfileKind_PROFILE_KIND_BLOCK:     {true, "\x1f\x8b"},
		debugv1.ProfileKind_PROFILE_KIND_TRACE:     {true, "go 1."},
		debugv1.ProfileKind_PROFILE_KIND_HEAP:      {false, "\x1f\x8b"},
		debugv1.ProfileKind_PROFILE_KIND_ALLOCS:    {false, "\x1f\x8b"},
		debugv1.ProfileKind_PROFILE_KIND_GOROUTINE: {false, "\x1f\x8b"},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			r.free(t)
			ended := make(chan error, 1)
			var data []byte
			go func() {
				var err error
				data, err = r.profile(t.Context(), kind, 0)
				ended <- err
			}()
			if want.lengthy {
				r.begins(t)
				r.clock.Step(defaultDuration)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(data), want.begins) {
				t.Errorf("the profile of %d bytes begins with %.8q, want %q", len(data), data, want.begins)
			}
			_, err := r.profile(t.Context(), kind, maxDuration+time.Second)
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "duration: ") {
				t.Errorf("a duration of more than %v ends with %v", maxDuration, err)
			}
		})
	}
	if fraction := runtime.SetMutexProfileFraction(-1); fraction != 0 {
		t.Errorf("after the profiles one in %d events of mutexes is still recorded", fraction)
	}
	for _, kind := range []debugv1.ProfileKind{debugv1.ProfileKind_PROFILE_KIND_UNSPECIFIED, 99} {
		if _, err := r.profile(t.Context(), kind, 0); status.Code(err) != codes.InvalidArgument {
			t.Errorf("the kind %d ends with %v, want %v", kind, err, codes.InvalidArgument)
		}
	}
}

func TestOneProfileAtATime(t *testing.T) {
	r := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.profile(ctx, debugv1.ProfileKind_PROFILE_KIND_TRACE, time.Minute)
		ended <- err
	}()
	r.begins(t)
	_, err := r.profile(t.Context(), debugv1.ProfileKind_PROFILE_KIND_HEAP, 0)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a second profile ends with %v, want %v", err, codes.ResourceExhausted)
	}
	cancel()
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("the cancelled profile ends with %v", err)
	}
	r.free(t)
	if trace.IsEnabled() {
		t.Error("the execution tracer runs although its caller is gone")
	}
}

// TestAProfilerOfAnotherClientIsNamed: syncloop also has the kubelet's HTTP API, which profiles.
func TestAProfilerOfAnotherClientIsNamed(t *testing.T) {
	r := serve(t)
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		t.Fatal(err)
	}
	defer pprof.StopCPUProfile()
	_, err := r.profile(t.Context(), debugv1.ProfileKind_PROFILE_KIND_CPU, time.Second)
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "another client profiles") {
		t.Errorf("it ends with %v", err)
	}
}

// TestAProfileThatNobodyReceivesEnds: it does not wait for its caller, and not for its duration.
func TestAProfileThatNobodyReceivesEnds(t *testing.T) {
	s := New(Config{Logger: slog.New(slog.DiscardHandler), Clock: clocktesting.NewFakeClock(begun)})
	out := newSpool(10)
	err := s.take(t.Context(), debugv1.ProfileKind_PROFILE_KIND_TRACE, time.Minute, out)
	out.end(err)
	if _, err := out.next(t.Context()); !errors.Is(err, errTooSlow) {
		t.Errorf("it ends with %v, want %v", err, errTooSlow)
	}
	err = send(t.Context(), out, func([]byte) error { return nil })
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("its caller gets %v, want %v", err, codes.ResourceExhausted)
	}
}

func TestGoroutinesAreText(t *testing.T) {
	r := serve(t)
	stream, err := r.DumpGoroutines(t.Context(), &debugv1.DumpGoroutinesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := len(chunk.GetText()); n == 0 || n > chunkSize {
			t.Errorf("a chunk has %d bytes", n)
		}
		text.Write(chunk.GetText())
	}
	for _, want := range []string{"TestGoroutinesAreText", "[IO wait", "(*Server).DumpGoroutines"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has not %q:\n%s", want, text.String())
		}
	}
}

// ballast is what the test of memory allocates and drops.
var ballast []byte

func TestMemoryIsFreed(t *testing.T) {
	r := serve(t)
	ballast = make([]byte, 64<<20)
	for i := range ballast {
		ballast[i] = 1
	}
	ballast = nil
	freed, err := r.FreeMemory(t.Context(), &debugv1.FreeMemoryRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if freed.GetAfter().GetHeldBytes() >= freed.GetBefore().GetHeldBytes() || freed.GetAfter().GetHeapBytes() == 0 {
		t.Errorf("freed %v", freed)
	}
}

// TestGenericClientsAreServed: the contracts and the connections of the process.
func TestGenericClientsAreServed(t *testing.T) {
	r := serve(t)
	info, err := grpc_reflection_v1.NewServerReflectionClient(r.conn).
		ServerReflectionInfo(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if err := info.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_FileContainingSymbol{
			FileContainingSymbol: debugv1.DebugService_ServiceDesc.ServiceName,
		},
	}); err != nil {
		t.Fatal(err)
	}
	answer, err := info.Recv()
	if err != nil || len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("the contract is %v, %v", answer, err)
	}
	servers, err := grpc_channelz_v1.NewChannelzClient(r.conn).
		GetServers(t.Context(), &grpc_channelz_v1.GetServersRequest{})
	if err != nil || len(servers.GetServer()) == 0 {
		t.Errorf("the servers are %v, %v", servers, err)
	}
	if err := info.CloseSend(); err != nil {
		t.Error(err)
	}
}
