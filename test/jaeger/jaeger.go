// Package jaeger starts a real Jaeger for tests: the all-in-one binary that "make test-tools" builds from tools/jaeger,
// with OTLP input, the query API and traces in memory. It has no user interface. It listens on free ports of the
// loopback interface, so that it runs beside any other Jaeger.
package jaeger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/logbuffer"
)

const (
	// startTimeout is the time limit until it answers, on a busy machine.
	startTimeout = 30 * time.Second
	// stopPatience is the time that it has to end by itself.
	stopPatience = 10 * time.Second
	// pollInterval is the time between two checks whether it answers.
	pollInterval = 20 * time.Millisecond
	// tries bounds the searches for free ports: another process may take one before Jaeger does.
	tries = 3
)

// Server is a running Jaeger.
type Server struct {
	query, otlp string
	cmd         *exec.Cmd
	log         *logbuffer.Buffer
	ended       chan struct{}
}

// Binary returns the path of the binary below the folder of the build's binaries. It need not exist.
func Binary(bin string) string { return filepath.Join(bin, "tools", "jaeger") }

// Require skips a test when the binary has not been built, or fails it with CI=true. It returns its path.
func Require(t testing.TB) string {
	t.Helper()
	binary := Binary(harness.BinDir(t))
	if _, err := os.Stat(binary); err != nil {
		harness.Require(t, fmt.Errorf("%w: run 'make test-tools' first", err))
	}
	return binary
}

// Start starts a Jaeger until the test ends. The test is skipped as Require does.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := New(t.Context(), Require(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// New starts a Jaeger from a binary and returns when it answers. It runs until Stop.
func New(ctx context.Context, binary string) (s *Server, err error) {
	for range tries {
		if s, err = start(binary); err != nil {
			return nil, err
		}
		if err = s.await(ctx); err == nil {
			return s, nil
		}
		err = errors.Join(err, s.Stop())
		if !strings.Contains(s.log.String(), "address already in use") {
			break
		}
	}
	return nil, err
}

// QueryURL returns the address of the query API, for example http://127.0.0.1:40123.
func (s *Server) QueryURL() string { return "http://" + s.query }

// Endpoint returns the value for OTEL_EXPORTER_OTLP_ENDPOINT: OTLP over gRPC, without TLS.
func (s *Server) Endpoint() string { return "http://" + s.otlp }

// Stop ends it and waits until it has ended.
func (s *Server) Stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop Jaeger: %w", err)
	}
	patience := time.NewTimer(stopPatience)
	defer patience.Stop()
	select {
	case <-s.ended:
		return nil
	case <-patience.C:
	}
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill Jaeger, which did not end within %s: %w", stopPatience, err)
	}
	<-s.ended
	return nil
}

func start(binary string) (*Server, error) {
	query, err := freeAddress()
	if err != nil {
		return nil, err
	}
	otlp, err := freeAddress()
	if err != nil {
		return nil, err
	}
	const anyPort = "127.0.0.1:0"
	s := &Server{query: query, otlp: otlp, log: &logbuffer.Buffer{}, ended: make(chan struct{})}
	s.cmd = exec.Command(binary,
		"--query.http-server.host-port", query, "--query.grpc-server.host-port", anyPort,
		"--collector.otlp.grpc.host-port", otlp, "--collector.otlp.http.host-port", anyPort,
		"--collector.grpc-server.host-port", anyPort, "--collector.http-server.host-port", anyPort,
		"--admin.http.host-port", anyPort, "--http-server.host-port", anyPort,
		"--processor.jaeger-compact.server-host-port", anyPort, "--processor.jaeger-binary.server-host-port", anyPort,
		"--processor.zipkin-compact.server-host-port", anyPort,
		"--memory.max-traces", "10000")
	// Otherwise it sends spans of its own to the default address, and at its end waits until they are accepted.
	s.cmd.Env = []string{"SPAN_STORAGE_TYPE=memory", "OTEL_TRACES_SAMPLER=always_off"}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start Jaeger: %w", err)
	}
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // its log has the reason of its end
	}()
	return s, nil
}

// freeAddress returns an address on which nothing listens now.
func freeAddress() (string, error) {
	port, err := freeport.Find()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

// await returns when the query API answers and OTLP is accepted.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := errors.Join(s.answers(ctx), s.accepts(ctx))
		if err == nil {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("jaeger has ended; its log:\n%s", s.log)
		case <-ctx.Done():
			return fmt.Errorf("jaeger does not answer: %w; its log:\n%s", err, s.log)
		case <-tick.C:
		}
	}
}

func (s *Server) answers(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.QueryURL()+"/api/services", nil)
	if err != nil {
		return err
	}
	// A connection of its own, which is closed afterwards: a test may check for leaks.
	transport := &http.Transport{DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = fmt.Errorf("it answers %s", response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

func (s *Server) accepts(ctx context.Context) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", s.otlp)
	if err != nil {
		return err
	}
	return conn.Close()
}
