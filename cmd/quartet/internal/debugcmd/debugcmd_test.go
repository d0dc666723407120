package debugcmd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/cmd/quartet/internal/target"
	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/debugapi"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/logging"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves a part of a node in a new state directory, and returns the directory.
func serve(t *testing.T, service layout.Service, register func(*grpc.Server)) (stateDir string) {
	t.Helper()
	stateDir = harness.ShortDir(t)
	l, err := layout.New(stateDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(l.Socket(service)), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: l.Address(service), Health: rpc.NewHealth(), Logger: slog.New(slog.DiscardHandler),
			Register: register, Ready: func() { close(ready) },
		})
	}()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return stateDir
}

// served serves the real DebugService of a process with the verbosity 1.
func served(t *testing.T, service layout.Service) (stateDir string) {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{
		Service: string(service), Output: io.Discard, Logging: logging.Config{Verbosity: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, service, debugapi.With(
		debugapi.Config{Logger: tel.Logger, Clock: clock.RealClock{}}, func(*grpc.Server) {}))
}

// run runs the command with the arguments in a line.
func run(t *testing.T, stateDir, line string) (string, error) {
	t.Helper()
	t.Setenv("QUARTET_STATE_DIR", stateDir)
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(strings.Fields(line))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestTheLogLevelChangesAndReturns(t *testing.T) {
	dir := served(t, layout.SyncLoop)
	for _, step := range []struct{ line, want string }{
		{"syncloop log-level", `^1, as configured\n$`},
		{"syncloop log-level 4 --for 10m", `^4 for another (10m0s|9m5\ds); configured: 1\n$`},
		{"syncloop log-level", `^4 for another (10m0s|9m\d+s); configured: 1\n$`},
		{"syncloop log-level 5", `^5 until syncloop ends; configured: 1\n$`},
		{"syncloop log-level configured", `^1, as configured\n$`},
	} {
		out, err := run(t, dir, step.line)
		if err != nil || !regexp.MustCompile(step.want).MatchString(out) {
			t.Errorf("%s: %q, %v, want %s", step.line, out, err, step.want)
		}
	}
}

func TestProfilesAreFiles(t *testing.T) {
	dir := served(t, layout.PLEG)
	t.Chdir(t.TempDir())
	for line, want := range map[string]struct{ file, begins, tool string }{
		"pleg profile cpu --seconds 1":              {"pleg-cpu-*.pprof", "\x1f\x8b", "go tool pprof pleg-cpu-"},
		"pleg profile trace --seconds 1 -o x.trace": {"x.trace", "go 1.", "go tool trace x.trace"},
		"pleg profile heap -o heap.pprof":           {"heap.pprof", "\x1f\x8b", "go tool pprof heap.pprof"},
		"pleg goroutines -o stacks":                 {"stacks", "goroutine ", ""},
	} {
		out, err := run(t, dir, line)
		if err != nil || !strings.Contains(out, want.tool) {
			t.Errorf("%s: %q, %v, want %q", line, out, err, want.tool)
		}
		files, err := filepath.Glob(want.file)
		if err != nil || len(files) != 1 {
			t.Fatalf("%s has made %q, %v, want %s", line, files, err, want.file)
		}
		content, err := os.ReadFile(files[0])
		if err != nil || !strings.HasPrefix(string(content), want.begins) {
			t.Errorf("%s begins with %.8q, %v, want %q", files[0], content, err, want.begins)
		}
		if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v, %v", files[0], info.Mode(), err)
		}
	}
	for line, want := range map[string]string{
		"pleg profile goroutine -o -": "\x1f\x8b",
		"pleg goroutines":             "goroutine ",
		"pleg gc":                     "heap                  ",
	} {
		if out, err := run(t, dir, line); err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%s: %.30q, %v, want %q", line, out, err, want)
		}
	}
}

// broken sends a chunk and fails.
type broken struct {
	debugv1.UnimplementedDebugServiceServer
}

func (broken) Profile(_ *debugv1.ProfileRequest, stream grpc.ServerStreamingServer[debugv1.ProfileResponse]) error {
	return errors.Join(stream.Send(&debugv1.ProfileResponse{Data: []byte("half")}), errors.New("the rest is lost"))
}

func TestAProfileThatFailsLeavesNoFile(t *testing.T) {
	dir := serve(t, layout.PLEG, func(s *grpc.Server) { debugv1.RegisterDebugServiceServer(s, broken{}) })
	t.Chdir(t.TempDir())
	_, err := run(t, dir, "pleg profile heap -o half")
	if err == nil || !strings.Contains(err.Error(), "pleg: the rest is lost") {
		t.Errorf("it fails with %v", err)
	}
	if _, err := os.Stat("half"); err == nil {
		t.Error("half a profile is left")
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	of := served(t, layout.SyncLoop)
	old := serve(t, layout.ConfigMux, func(*grpc.Server) {})
	for _, test := range []struct{ dir, line, want string }{
		{of, "", "say which part: debug configmux, pleg, syncloop or nodestatus"},
		{of, "kubelet", `there is no part "kubelet"`},
		{of, "syncloop", "say what to do: debug syncloop log-level, profile, goroutines or gc"},
		{of, "syncloop stop", `there is no "stop"`},
		{of, "syncloop log-level loud", `the level "loud" must be a number from 0, such as 4, or configured`},
		{of, "syncloop log-level --for 1m", "--for needs a level"},
		{of, "syncloop log-level configured --for 1m", "syncloop: duration: the configured verbosity has no time limit"},
		{of, "syncloop log-level 4 --for 48h", "syncloop: duration: 48h0m0s must be from 1s to 24h0m0s"},
		{of, "syncloop profile", "say which profile: cpu, heap, allocs, goroutine, mutex, block, trace"},
		{of, "syncloop profile disk", `there is no profile "disk"`},
		{of, "syncloop profile heap --seconds 3", "heap shows one moment and has no --seconds"},
		{of, "syncloop profile cpu --seconds 301", "syncloop: duration: 5m1s must be from 1s to 5m0s"},
		{of, "syncloop profile heap -o no/such/file", "-o: open no/such/file: no such file or directory"},
		{of, "pleg gc", "it does not run, although syncloop of the same node does"},
		{old, "configmux gc", "this configmux is of a version without this command"},
		{old, "configmux goroutines", "this configmux is of a version without this command"},
	} {
		_, err := run(t, test.dir, test.line)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s fails with %v, want %q", test.line, err, test.want)
		}
	}
}

// lister is a pleg that has relisted, or cannot.
type lister struct {
	lifecyclev1.UnimplementedLifecycleServiceServer

	fails error
}

func (l lister) RequestRelist(
	context.Context, *lifecyclev1.RequestRelistRequest,
) (*lifecyclev1.RequestRelistResponse, error) {
	return &lifecyclev1.RequestRelistResponse{RelistedAt: timestamppb.Now()}, l.fails
}

func TestARelistIsRequested(t *testing.T) {
	register := func(l lister) func(*grpc.Server) {
		return func(s *grpc.Server) { lifecyclev1.RegisterLifecycleServiceServer(s, l) }
	}
	out, err := run(t, serve(t, layout.PLEG, register(lister{})), "pleg relist")
	listed := regexp.MustCompile(`^The runtime was listed at \S+, -?[\d.]+m?s after the request\.\n$`)
	if err != nil || !listed.MatchString(out) {
		t.Errorf("got %q, %v", out, err)
	}
	hung := lister{fails: status.Error(codes.Unavailable, "the runtime does not answer")}
	_, err = run(t, serve(t, layout.PLEG, register(hung)), "pleg relist")
	if err == nil || err.Error() != "pleg: the runtime does not answer" {
		t.Errorf("it fails with %v", err)
	}
	slow := lister{fails: status.Error(codes.DeadlineExceeded, "context deadline exceeded")}
	_, err = run(t, serve(t, layout.PLEG, register(slow)), "pleg relist")
	if err == nil || !strings.HasPrefix(err.Error(), "the runtime was not listed within 30s") {
		t.Errorf("of a runtime that hangs it says %v", err)
	}
	_, err = run(t, t.TempDir(), "syncloop relist")
	if err == nil || !strings.Contains(err.Error(), `there is no "relist"`) {
		t.Errorf("syncloop is asked: %v", err)
	}
}

// TestAnInterruptedProfileSaysSo: Ctrl-C ends the context.
func TestAnInterruptedProfileSaysSo(t *testing.T) {
	dir := served(t, layout.SyncLoop)
	p := &part{service: layout.SyncLoop, node: target.Node{StateDir: dir}, clock: clock.RealClock{}}
	ctx, cancel := context.WithCancel(t.Context())
	err := p.ask(ctx, time.Minute, func(ctx context.Context, client debugv1.DebugServiceClient) error {
		cancel()
		_, err := client.GetLogLevel(ctx, &debugv1.GetLogLevelRequest{})
		return err
	})
	if err == nil || err.Error() != "interrupted" {
		t.Errorf("it fails with %v", err)
	}
}
