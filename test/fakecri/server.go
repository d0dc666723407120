// Package fakecri is a container runtime for tests: the CRI v1 runtime and image services over a real unix socket, with
// nothing behind them but memory. It answers as containerd 2 does where that matters: container events with a backlog for
// the first subscriber, names that are taken, addresses that go with the network, calls that may be repeated.
//
// A test changes the state behind the caller's back ([Server.Exit], [Server.KillSandbox]), makes calls fail, wait or hang
// by method and by id ([Server.Fail], [Server.Delay], [Server.Hang]), takes the runtime away and brings it back
// ([Server.Stop], [Server.Start]), and counts calls ([Server.Count]).
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
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Server is the fake runtime. Its methods may be called from any goroutine.
type Server struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer

	script script
	events eventLog
	socket string

	mu         sync.Mutex
	server     *grpc.Server
	served     chan struct{}
	sandboxes  map[string]*sandbox
	containers map[string]*container
	images     map[string]*runtimeapi.Image
	protected  map[string]*runtimeapi.AuthConfig
	serial     int
	conditions []*runtimeapi.RuntimeCondition
	onStart    func(Container) (exitCode int32, exits bool)
	onExec     func(containerID string, command []string) (stdout, stderr []byte, exitCode int32)
	ignoreTerm map[string]bool
	muted      bool
	lastNanos  int64
}

// New starts a fake runtime that is ready and empty, and stops it when the test ends.
func New(t testing.TB) *Server {
	t.Helper()
	// Not t.TempDir: the name of a test may make its path longer than a socket's may be.
	dir, err := os.MkdirTemp("", "fakecri")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{
		socket:     filepath.Join(dir, "cri.sock"),
		sandboxes:  map[string]*sandbox{},
		containers: map[string]*container{},
		images:     map[string]*runtimeapi.Image{},
		protected:  map[string]*runtimeapi.AuthConfig{},
		ignoreTerm: map[string]bool{},
	}
	s.script.inFlight, s.script.maxInFlight = map[string]int{}, map[string]int{}
	s.SetConditions(true, true)
	if err := s.Start(); err != nil {
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

// now returns the wall clock in nanoseconds, never twice the same. Called with mu held.
func (s *Server) now() int64 {
	s.lastNanos = max(s.lastNanos+1, time.Now().UnixNano())
	return s.lastNanos
}

func (s *Server) nextID(prefix string) string {
	s.serial++
	return fmt.Sprintf("%s-%04d", prefix, s.serial)
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	done, err := s.script.enter(ctx, path.Base(info.FullMethod), idsOf(req))
	defer done()
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	done, err := s.script.enter(ss.Context(), path.Base(info.FullMethod), nil)
	defer done()
	if err != nil {
		return err
	}
	return handler(srv, ss)
}
