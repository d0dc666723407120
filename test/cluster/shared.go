package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
)

// Shared is one cluster for the tests of a package. The first test that calls Cluster starts it, and Main ends it:
//
//	var shared cluster.Shared
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
//
//	func TestPods(t *testing.T) {
//		client := shared.Cluster(t).Client(t)
//
// The next test sees what a test has created, so each uses names of its own, of nodes for example. A test that stops or
// pauses a server must not run in parallel with others.
type Shared struct {
	// Options are those of the cluster. They are read when it is started.
	Options []Option

	once    sync.Once
	cluster *Cluster
	err     error
}

// Runner runs the tests of a package: *testing.M, and the parameter of goleak.VerifyTestMain.
type Runner interface {
	// Run runs the tests and returns the exit code.
	Run() int
}

// Cluster returns the cluster, started and ready. The test is skipped as Require does. When the test ends, servers that
// it has stopped or paused are started again, and their logs since its start are printed if it has failed.
func (s *Shared) Cluster(t testing.TB) *Cluster {
	t.Helper()
	binDir := Require(t)
	s.once.Do(func() { s.cluster, s.err = New(t.Context(), binDir, s.Options...) })
	if s.err != nil {
		t.Fatalf("cluster: %v", s.err)
	}
	c := s.cluster
	logged := map[*Server]int64{}
	for _, server := range c.servers() {
		logged[server] = server.logSize()
	}
	t.Cleanup(func() {
		if err := c.restore(); err != nil {
			t.Errorf("cluster: the next tests have no cluster: %v", err)
		}
		if t.Failed() {
			for _, server := range c.servers() {
				t.Log(server.logFrom(logged[server]))
			}
		}
	})
	return c
}

// restore starts or resumes all servers, and returns when they are ready.
func (c *Cluster) restore() error {
	ctx := context.Background()
	for _, server := range c.servers() {
		if !server.Running() {
			if err := server.start(ctx); err != nil {
				return err
			}
			continue
		}
		if err := server.signal(syscall.SIGCONT); err != nil {
			return err
		}
		if err := server.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Main runs the tests of a package and then ends the cluster, if one was started.
func (s *Shared) Main(tests Runner) Runner { return &sharing{shared: s, tests: tests} }

type sharing struct {
	shared *Shared
	tests  Runner
}

// Run implements Runner. The exit code is 1 if the cluster did not end cleanly.
func (r *sharing) Run() int {
	code := r.tests.Run()
	if r.shared.cluster == nil {
		return code
	}
	if err := r.shared.cluster.Close(); err != nil {
		fmt.Fprintln(os.Stderr, errors.Join(errors.New("cluster: the shared cluster did not end cleanly"), err))
		return max(code, 1)
	}
	return code
}
