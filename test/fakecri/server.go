// Package fakecri is a container runtime for tests: the CRI v1 runtime and image services over a real unix socket, with
// nothing behind them but memory. It answers as containerd 2 does where that matters: container events with a backlog for
// the first subscriber, names that are taken, addresses that go with the network, calls that may be repeated.
//
// A test changes the state behind the caller's back ([Server.Exit], [Server.KillSandbox]), makes calls fail, wait or hang
// by method and by pod or id ([Server.Fail], [Server.Delay], [Server.Hang]), makes the events get lost, come twice, out of
// order, late or empty ([Server.TwistEvents], [Server.FillBacklog], [Server.EndEventStreamsAfter]), takes the runtime away and
// brings it back ([Server.Stop], [Server.Start]), and counts calls ([Server.Count]). Its time is that of a clock that the test
// may set ([WithClock]). It is quick enough for thousands of containers. How it is held to what containerd does is in
// containerd_test.go.
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
	"testing"

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
	// onTerm has the exit code after SIGTERM by container name; that of the signal when there is none.
	onTerm    map[string]int32
	muted     bool
	driver    runtimeapi.CgroupDriver
	lastNanos int64
}

// Option changes how a Server is.
type Option func(*Server)

// WithClock has all times of the runtime come from a clock: of what was created, started and ended, of events and of calls; and
// delays, grace periods and the lives of event streams wait for it.
func WithClock(c clock.Clock) Option { return func(s *Server) { s.clock = c } }

// New starts a fake runtime that is ready and empty, and stops it when the test ends.
func New(t testing.TB, options ...Option) *Server {
	t.Helper()
	// Not t.TempDir: the name of a test may make its path longer than a socket's may be.
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

// Serve starts a fake runtime that is ready and empty on a socket, for a program that is no test; Stop ends it. It fails when it
// cannot listen there.
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

// Endpoint is the address to give as containerRuntimeEndpoint.
func (s *Server) Endpoint() string { return "unix://" + s.socket }

// Start serves the socket, with the state that was there when the server was stopped. It fails when it is serving already.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return errors.New("the fake runtime is serving already")
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
			// The listener is this server's own and ends with Stop; callers see it as a runtime that is away.
			fmt.Fprintln(os.Stderr, "fakecri:", err)
		}
	}()
	s.server, s.served = server, served
	return nil
}

// Stop ends the server as a kill does: calls break off, the socket refuses, the state stays.
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

// SetConditions sets what Status says of the runtime and of its network.
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

// SetCgroupDriver makes the runtime say that it has a cgroup driver; it is cgroupfs at first.
func (s *Server) SetCgroupDriver(driver runtimeapi.CgroupDriver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver = driver
}

// OnStart decides what a container does when it has been started: it runs on, or exits at once with a code. A test's init
// containers exit with 0. f is called with the server's lock held and must not call the server.
func (s *Server) OnStart(f func(Container) (exitCode int32, exits bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onStart = f
}

// OnExec answers ExecSync; without it every command succeeds silently.
func (s *Server) OnExec(f func(containerID string, command []string) (stdout, stderr []byte, exitCode int32)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onExec = f
}

// IgnoreTerm makes containers of this name go on after SIGTERM: StopContainer takes its whole timeout, then kills.
func (s *Server) IgnoreTerm(containerName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ignoreTerm[containerName] = true
}

// ExitOnTerm makes containers of this name exit with a code of their own when they get SIGTERM.
func (s *Server) ExitOnTerm(containerName string, code int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onTerm[containerName] = code
}

// now returns the time in nanoseconds since 1970, never twice the same. Called with mu held.
func (s *Server) now() int64 {
	s.lastNanos = max(s.lastNanos+1, s.clock.Now().UnixNano())
	return s.lastNanos
}

func (s *Server) nextID(prefix string) string {
	s.serial++
	return fmt.Sprintf("%s-%04d", prefix, s.serial)
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
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
