package supervisor_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/cmd/internal/supervisor"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == server {
		if err := serve(os.Args[2]); err != nil {
			panic(err)
		}
		return
	}
	if done, err := role(); done {
		if err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

type node struct {
	out, events *logbuffer.Buffer
	pids        string
	stop        func() error
}

// start runs shell scripts as the processes of a node.
func start(t *testing.T, backoff, grace time.Duration, scripts map[string]string) *node {
	t.Helper()
	n := &node{out: &logbuffer.Buffer{}, events: &logbuffer.Buffer{}, pids: t.TempDir()}
	output := supervisor.NewOutput(n.out, "steady", "crash")
	var services []supervisor.Service
	for name, script := range scripts {
		services = append(services, &supervisor.Process{
			Name: name, Path: "/bin/sh", Args: []string{"-c", script}, Output: output,
			PIDFile: filepath.Join(n.pids, name+".pid"), Grace: grace, FinalExit: 78,
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- supervisor.Run(ctx, supervisor.Config{
			Services: services, Logger: slog.New(slog.NewTextHandler(n.events, nil)),
			StopTimeout: grace + time.Minute, Backoff: backoff,
		})
	}()
	var once sync.Once
	var err error
	n.stop = func() error {
		once.Do(func() { cancel(); err = <-done })
		return err
	}
	t.Cleanup(func() {
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) pid(name string) int {
	content, err := os.ReadFile(filepath.Join(n.pids, name+".pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0
	}
	return pid
}

// steady prints a line and ends on SIGTERM only.
const steady = `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done`

func TestOutputIsPrefixedLineByLine(t *testing.T) {
	n := start(t, time.Hour, time.Second, map[string]string{
		"steady": steady, "crash": `printf 'one\ntwo'; echo; sleep 100`,
	})
	eventually.That(t, "each line has the name of its process", func() bool {
		out := n.out.String()
		return strings.Contains(out, "steady | up\n") && strings.Contains(out, "crash  | one\n") &&
			strings.Contains(out, "crash  | two\n")
	})
}

func TestAKilledProcessIsBackAtOnce(t *testing.T) {
	n := start(t, time.Hour, time.Second, map[string]string{"steady": steady})
	eventually.That(t, "it runs", func() bool { return n.pid("steady") != 0 })
	first := n.pid("steady")
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "another runs", func() bool { pid := n.pid("steady"); return pid != 0 && pid != first })
	eventually.That(t, "the log says why", func() bool { return strings.Contains(n.events.String(), "signal: killed") })
}

func TestAProcessThatKeepsEndingBacksOffAndHarmsNoOther(t *testing.T) {
	n := start(t, time.Hour, time.Second, map[string]string{"steady": steady, "crash": `echo started; exit 3`})
	eventually.That(
		t,
		"the back-off has begun",
		func() bool { return strings.Contains(n.events.String(), "ends repeatedly") },
	)
	if got := strings.Count(n.out.String(), "started"); got < 2 || got > 6 {
		t.Errorf("it was started %d times before the back-off", got)
	}
	if !strings.Contains(n.events.String(), "exit status 3") {
		t.Errorf("the log does not say how it ended: %s", n.events)
	}
	first := n.pid("steady")
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.That(
		t,
		"the other is back meanwhile",
		func() bool { pid := n.pid("steady"); return pid != 0 && pid != first },
	)
}

func TestBackOffEnds(t *testing.T) {
	n := start(t, 10*time.Millisecond, time.Second, map[string]string{"crash": `echo started; exit 3`})
	eventually.That(
		t,
		"it is started after the pause",
		func() bool { return strings.Count(n.out.String(), "started") > 12 },
	)
}

func TestStopEndsEveryProcess(t *testing.T) {
	n := start(t, time.Hour, time.Minute, map[string]string{"steady": steady, "crash": steady})
	eventually.That(t, "both run", func() bool { return strings.Count(n.out.String(), "up") == 2 })
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(n.out.String(), "bye"); got != 2 {
		t.Errorf("%d of 2 ended in peace: %s, want 2", got, n.out)
	}
	if left, err := os.ReadDir(n.pids); err != nil || len(left) != 0 {
		t.Errorf("pid files are left: %v %v", left, err)
	}
}

func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	n := start(
		t,
		time.Hour,
		50*time.Millisecond,
		map[string]string{"steady": `trap '' TERM; echo up; while :; do sleep 0.05; done`},
	)
	eventually.That(t, "it runs", func() bool { return strings.Contains(n.out.String(), "up") && n.pid("steady") != 0 })
	pid := n.pid("steady")
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("process %d still runs", pid)
	}
}

func TestWholeLinesHaveNothingBeforeThem(t *testing.T) {
	var out logbuffer.Buffer
	lines := supervisor.Whole(&out).Prefixed("p")
	for _, part := range []string{"{\"a\":", "1}\n{}\n"} {
		if _, err := lines.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.String(), "{\"a\":1}\n{}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLongLinesAreBroken(t *testing.T) {
	var out logbuffer.Buffer
	lines := supervisor.NewOutput(&out, "p").Prefixed("p")
	if _, err := lines.Write(bytes.Repeat([]byte("x"), 200<<10)); err != nil {
		t.Fatal(err)
	}
	lines.Flush()
	for line := range strings.Lines(out.String()) {
		if len(line) > 70<<10 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
	if got := strings.Count(out.String(), "x"); got != 200<<10 {
		t.Errorf("%d bytes of %d arrived", got, 200<<10)
	}
}

// TestAProcessThatCannotWorkWithItsConfigurationEndsTheNode, with the error of that process.
func TestAProcessThatCannotWorkWithItsConfigurationEndsTheNode(t *testing.T) {
	var out, events logbuffer.Buffer
	output := supervisor.NewOutput(&out, "steady", "wrong")
	pids := t.TempDir()
	process := func(name, script string) supervisor.Service {
		return &supervisor.Process{
			Name:      name,
			Path:      "/bin/sh",
			Args:      []string{"-c", script},
			Output:    output,
			PIDFile:   filepath.Join(pids, name+".pid"),
			Grace:     time.Minute,
			FinalExit: 78,
		}
	}
	err := supervisor.Run(t.Context(), supervisor.Config{
		Services: []supervisor.Service{
			process("steady", steady),
			process(
				"wrong",
				`until test -e `+filepath.Join(
					pids,
					"steady.pid",
				)+`; do sleep 0.02; done; echo starting; printf 'wrong: two mistakes:\n  one\n  two\n' >&2; exit 78`,
			),
		},
		Logger: slog.New(slog.NewTextHandler(&events, nil)), StopTimeout: time.Minute, Backoff: time.Hour,
	})
	if err == nil || err.Error() != "wrong: two mistakes:\n  one\n  two" {
		t.Errorf("Run() error = %v, want %q", err, "wrong: two mistakes:\n  one\n  two")
	}
	if strings.Contains(events.String(), "started again") {
		t.Errorf("it was started again: %s", events.String())
	}
	left, err := filepath.Glob(filepath.Join(pids, "*.pid"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}
