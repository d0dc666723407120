// Package fakecri is a container runtime for tests: the CRI v1 runtime and image services over a real unix socket, with
// all state in memory and no processes. It behaves as containerd 2 where that matters: container events with a backlog
// for the first subscriber, reserved names, addresses that are lost with the network, calls that may be repeated.
//
// A test changes the state behind the caller's back ([Server.Exit], [Server.KillSandbox]); makes calls fail, wait or
// hang by method and by pod or id ([Server.Fail], [Server.Delay], [Server.Hang]); makes events get lost, repeated,
// reordered, late or empty ([Server.TwistEvents], [Server.FillBacklog], [Server.EndEventStreamsAfter]); stops the
// runtime and starts it again ([Server.Stop], [Server.Start]); and counts calls ([Server.Count]). A test may set its
// clock ([WithClock]). It is fast enough for thousands of containers. containerd_test.go compares it with containerd.
package fakecri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

// Server is the fake runtime. Its methods may be called from any goroutine.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	script script
	events eventLog
	socket string
	clock  clock.Clock

	mu         sync.Mutex
	server     *grpc.Server
	served     chan struct{}
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]*runtimeapi.Image
	protected  map[string]*runtimeapi.AuthConfig
	serial     int
	conditions []*runtimeapi.RuntimeCondition
	// strictGroups is true for a runtime that supports the policy Strict for supplemental groups.
	strictGroups bool
	onStart      func(Container) (exitCode int32, exits bool)
	onExec       func(containerID string, command []string) (stdout, stderr []byte, exitCode int32)
	ignoreTerm   map[string]bool
	// onTerm has the exit code after SIGTERM by container name; the default is that of the signal.
	onTerm    map[string]int32
	muted     bool
	driver    runtimeapi.CgroupDriver
	lastNanos int64
}

// Option configures a Server.
type Option func(*Server)

// WithClock sets the clock of the runtime: for the times of creations, starts, ends, events and calls, and for delays,
// grace periods and the lifetimes of event streams.
func WithClock(c clock.Clock) Option { return func(s *Server) { s.clock = c } }

// T has the methods of a test that New needs. It is no testing.TB, because `quartet conformance` links this package.
type T interface {
	Helper()
	Fatal(args ...any)
	Error(args ...any)
	Cleanup(f func())
}

// New starts an empty, ready fake runtime, and stops it when the test ends.
func New(t T, options ...Option) *Server {
	t.Helper()
	// Not t.TempDir: with the name of a test its path may be too long for a socket.
	dir, err := os.MkdirTemp("", "fakecri")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Serve(filepath.Join(dir, "cri.sock"), options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Serve starts an empty, ready fake runtime on a socket, for a program that is not a test; Stop ends it. It fails when
// it cannot listen there.
func Serve(socket string, options ...Option) (*Server, error) {
	s := &Server{
		socket:     socket,
		clock:      clock.RealClock{},
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		images:     map[string]*runtimeapi.Image{},
		protected:  map[string]*runtimeapi.AuthConfig{},
		ignoreTerm: map[string]bool{}, onTerm: map[string]int32{},
		driver: runtimeapi.CgroupDriver_CGROUPFS,
	}
	for _, option := range options {
		option(s)
	}
	s.script.clock, s.script.inFlight, s.script.maxInFlight = s.clock, map[string]int{}, map[string]int{}
	s.SetConditions(true, true)
	return s, s.Start()
}

// Endpoint returns the value for containerRuntimeEndpoint.
func (s *Server) Endpoint() string { return "unix://" + s.socket }

// Start serves the socket with the state of the moment of Stop. It fails when the server is running.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return errors.New("the fake runtime is already serving")
	}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		return fmt.Errorf("listening as a container runtime: %w", err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream))
	runtimeapi.RegisterRuntimeServiceServer(server, s)
	runtimeapi.RegisterImageServiceServer(server, s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); err != nil {
			// The listener belongs to this server and ends with Stop; callers see an unavailable runtime.
			fmt.Fprintln(os.Stderr, "fakecri:", err)
		}
	}()
	s.server, s.served = server, served
	return nil
}

// Stop ends the server as a kill does: calls fail, the socket refuses connections, the state is kept.
func (s *Server) Stop() {
	s.mu.Lock()
	server, served := s.server, s.served
	s.server = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	server.Stop()
	<-served
}

// SetConditions sets the conditions of the runtime and of its network in Status.
func (s *Server) SetConditions(runtimeReady, networkReady bool) {
	condition := func(kind string, ready bool) *runtimeapi.RuntimeCondition {
		if ready {
			return &runtimeapi.RuntimeCondition{Type: kind, Status: true}
		}
		return &runtimeapi.RuntimeCondition{Type: kind, Reason: "Scripted", Message: "the test says so"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conditions = []*runtimeapi.RuntimeCondition{
		condition(runtimeapi.RuntimeReady, runtimeReady), condition(runtimeapi.NetworkReady, networkReady),
	}
}

// SetCgroupDriver sets the cgroup driver that the runtime reports; the default is cgroupfs.
func (s *Server) SetCgroupDriver(driver runtimeapi.CgroupDriver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver = driver
}

// OnStart sets the function that decides what a started container does: it keeps running, or exits at once with a code.
// A test's init containers exit with 0. f is called with the server's lock held and must not call the server.
func (s *Server) OnStart(f func(Container) (exitCode int32, exits bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onStart = f
}

// OnExec sets the function that answers ExecSync; without it every command succeeds without output.
func (s *Server) OnExec(f func(containerID string, command []string) (stdout, stderr []byte, exitCode int32)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onExec = f
}

// IgnoreTerm makes containers of this name ignore SIGTERM: StopContainer waits for its whole timeout, then kills.
func (s *Server) IgnoreTerm(containerName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ignoreTerm[containerName] = true
}

// ExitOnTerm makes containers of this name exit with the given code when they get SIGTERM.
func (s *Server) ExitOnTerm(containerName string, code int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onTerm[containerName] = code
}

// now returns the time in nanoseconds since 1970. It never returns the same value twice. Called with mu held.
func (s *Server) now() int64 {
	s.lastNanos = max(s.lastNanos+1, s.clock.Now().UnixNano())
	return s.lastNanos
}

func (s *Server) nextID(prefix string) string {
	s.serial++
	return fmt.Sprintf("%s-%04d", prefix, s.serial)
}

func (s *Server) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	ids := idsOf(req)
	done, err := s.script.enter(ctx, Call{Method: path.Base(info.FullMethod), IDs: ids, PodUID: s.podOf(ids)})
	defer done()
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	done, err := s.script.enter(ss.Context(), Call{Method: path.Base(info.FullMethod)})
	defer done()
	if err != nil {
		return err
	}
	return handler(srv, ss)
}
