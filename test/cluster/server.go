package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

const (
	// startTimeout is the time limit until a server is ready: some seconds on an idle machine, more beside a build.
	startTimeout = 2 * time.Minute
	// stopPatience is the time that a server has to end by itself: an API server completes its open requests first.
	stopPatience = 30 * time.Second
	// pollInterval is the time between two readiness checks.
	pollInterval = 50 * time.Millisecond
	// logTail is the number of bytes of the end of a log that are shown.
	logTail = 16 << 10
)

// Server is one of the processes of a cluster. It keeps its address, certificates and data when it is restarted, so
// that clients find it again. Its methods are for one goroutine at a time.
type Server struct {
	name string
	args []string
	path string
	log  string
	// ready returns nil as soon as the server is ready.
	ready func(context.Context) error

	// run is the process, nil when the server has been stopped.
	run *run
}

// run is a process from its start to its end.
type run struct {
	process *os.Process
	// ended is closed at the end of the process. exit has its exit status and may be read from then on.
	ended chan struct{}
	exit  string
}

func newServer(dir, binDir, name string, ready func(context.Context) error, args ...string) *Server {
	return &Server{
		name: name, path: filepath.Join(binDir, "tools", name), args: args, log: filepath.Join(dir, name+".log"), ready: ready,
	}
}

// Start starts the server after Stop or Kill and returns when it is ready.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.must(t, s.start(t.Context()))
}

// Stop asks the server to end, as a careful administrator does, and returns when it has ended. Connections to it are
// refused then. A paused server has to be resumed before.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.must(t, s.stop())
}

// Kill ends the server by SIGKILL and returns when it has ended. Connections to it are refused then.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.must(t, s.kill())
}

// Pause suspends the server by SIGSTOP: the kernel still accepts connections to it, and nothing answers.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.must(t, s.signal(syscall.SIGSTOP))
}

// Resume resumes the server after Pause.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.must(t, s.signal(syscall.SIGCONT))
}

func (s *Server) must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("cluster: %v", err)
	}
}

// Running returns true from start until stop or kill, also when the process has ended by itself meanwhile.
func (s *Server) Running() bool { return s.run != nil }

func (s *Server) start(ctx context.Context) error {
	if s.Running() {
		return fmt.Errorf("%s is already running", s.name)
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	cmd := exec.Command(s.path, s.args...)
	// The environment is empty, because some servers would take settings from it.
	cmd.Env = []string{}
	cmd.Stdout, cmd.Stderr = log, log
	// A test that is killed takes its servers along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, err := launch(cmd)
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	s.run = started
	return s.await(ctx)
}

// launch starts a process and waits for it in a goroutine that ends with it.
func launch(cmd *exec.Cmd) (*run, error) {
	r := &run{ended: make(chan struct{})}
	failed := make(chan error)
	go func() {
		// Pdeathsig refers to the thread that has started the process: the thread has to live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		r.process = cmd.Process
		failed <- err
		if err == nil {
			_ = cmd.Wait() // the process state has the result
			r.exit = cmd.ProcessState.String()
			close(r.ended)
		}
	}()
	return r, <-failed
}

// await returns when the server is ready. It fails when the server ends, or takes too long.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.run.ended:
			return fmt.Errorf("%s has ended instead of being ready: %s\n%s", s.name, s.run.exit, s.logFrom(0))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; its last answer: %w\n%s", s.name, ctx.Err(), err, s.logFrom(0))
		case <-tick.C:
		}
	}
}

// stop ends the process by SIGTERM, after stopPatience by SIGKILL. It is a no-op for a server that does not run; one
// that has ended by itself is an error.
func (s *Server) stop() error {
	if !s.Running() {
		return nil
	}
	if err := s.signal(syscall.SIGTERM); err != nil {
		s.run = nil
		return err
	}
	patience := time.NewTimer(stopPatience)
	defer patience.Stop()
	select {
	case <-s.run.ended:
		s.run = nil
		return nil
	case <-patience.C:
	}
	return errors.Join(fmt.Errorf("%s has not ended %s after SIGTERM and is killed", s.name, stopPatience), s.kill())
}

// kill ends the process by SIGKILL, otherwise like stop.
func (s *Server) kill() error {
	if !s.Running() {
		return nil
	}
	ended := s.run.ended
	err := s.signal(syscall.SIGKILL)
	<-ended
	s.run = nil
	return err
}

// signal sends a signal. It fails when the process was not started or has ended.
func (s *Server) signal(signal syscall.Signal) error {
	if !s.Running() {
		return fmt.Errorf("%s is not running", s.name)
	}
	select {
	case <-s.run.ended:
		return fmt.Errorf("%s has ended by itself: %s", s.name, s.run.exit)
	default:
	}
	if err := s.run.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to %s: %w", signal, s.name, err)
	}
	return nil
}

// logSize returns the current size of the log.
func (s *Server) logSize() int64 {
	info, err := os.Stat(s.log)
	if err != nil {
		return 0 // it has not been started
	}
	return info.Size()
}

// logFrom returns the log from an offset on, or its last logTail bytes when it is longer.
func (s *Server) logFrom(offset int64) string {
	file, err := os.Open(s.log)
	if err != nil {
		return err.Error()
	}
	defer file.Close() //nolint:errcheck // it was only read
	content, err := io.ReadAll(io.NewSectionReader(file, max(offset, s.logSize()-logTail), logTail))
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("the end of the log of %s:\n%s", s.name, content)
}
