package supervisor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quartet-node/quartet/cmd/internal/supervisor"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/logqueue"
	"github.com/quartet-node/quartet/internal/sockets"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/systemd"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

const (
	// becomes is the first argument that makes this program take the lock of a node and become its supervisor, with the
	// plan of its second argument.
	becomes = "becomes"
	// reports is the first argument that makes it a part that is ready and works, until SIGTERM.
	reports = "reports"
)

// role does what the arguments of this program ask for; false for a run of tests.
func role() (done bool, err error) {
	if len(os.Args) < 2 {
		return false, nil
	}
	switch os.Args[1] {
	case becomes:
		if os.Getenv("QUARTET_PLAN") != "" {
			supervisor.Main()
			return true, nil
		}
		var plan supervisor.Plan
		if err := json.Unmarshal([]byte(os.Args[2]), &plan); err != nil {
			return true, err
		}
		lock, err := statedir.Lock(plan.StateDir, plan.Name)
		if err != nil {
			return true, err
		}
		return true, plan.Become(context.Background(), os.Args[0], lock)
	case reports:
		notifier := systemd.Take()
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		notifier.Ready(slog.Default())
		fmt.Println("environment", os.Getenv("QUARTET_PLAN"), os.Getenv("NOTIFY_SOCKET"), "end")
		<-ctx.Done()
		notifier.Stopping(slog.Default())
		return true, nil
	default:
		return false, nil
	}
}

// TestACommandBecomesTheSupervisor: it keeps its process and its lock, and systemd learns of it what it learned before.
func TestACommandBecomesTheSupervisor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close() //nolint:errcheck // nothing was written
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sum, err := supervisor.ConfigSum("")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := json.Marshal(supervisor.Plan{
		Name: "quartet", StateDir: l.StateDir(), ConfigSum: sum, StuckTimeout: time.Minute, FinalExit: 78,
		Parts: []supervisor.Part{
			{Name: "pleg", Path: os.Args[0], Args: []string{reports}},
			{Name: "syncloop", Path: os.Args[0], Args: []string{reports}},
			// It knows of no supervisor, and systemd does not wait for it.
			{Name: "nodestatus", Path: "/bin/sh", Args: []string{"-c", steady}, Foreign: true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var log logbuffer.Buffer
	cmd := exec.Command(os.Args[0], becomes, string(plan))
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			_ = cmd.Process.Kill() // it may have ended
			t.Log(log.String())
		}
	}()
	await := func(want string) {
		t.Helper()
		message := make([]byte, 200)
		if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := manager.Read(message)
		if err != nil || string(message[:n]) != want {
			t.Fatalf("systemd is told %q, %v; want %q", message[:n], err, want)
		}
	}
	await("READY=1")
	_, err = statedir.Lock(l.StateDir(), "quartet")
	if held := (*statedir.HeldError)(nil); !errors.As(err, &held) || held.Holder.PID != cmd.Process.Pid {
		t.Errorf("the lock is free, or that of another process: %v", err)
	}
	eventually.That(t, "all parts run", func() bool {
		return strings.Count(log.String(), "| environment") == 2 && strings.Contains(log.String(), "nodestatus | up")
	})
	if got := strings.Count(log.String(), "| environment   end\n"); got != 2 {
		t.Errorf("the parts have what is meant for their supervisor, or their own children would")
	}
	pids := &node{pids: filepath.Dir(l.PIDFile("pleg"))}
	if pid := pids.pid("quartet"); pid != cmd.Process.Pid {
		t.Errorf("the PID file of the supervisor has %d, want %d", pid, cmd.Process.Pid)
	}
	for _, name := range []string{"pleg", "nodestatus"} {
		for _, open := range filesOf(t, pids.pid(name)) {
			if strings.HasSuffix(open, ".lock") || strings.Contains(open, "memfd") {
				t.Errorf("%s has inherited %s", name, open)
			}
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await("STOPPING=1")
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if strings.Contains(log.String(), "cannot notify") {
		t.Errorf("a part cannot report that it stops")
	}
	lock, err := statedir.Lock(l.StateDir(), "quartet")
	if err != nil {
		t.Fatalf("after the end: %v", err)
	}
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
}

// filesOf returns the open files of a process.
func filesOf(t *testing.T, pid int) (open []string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if link, err := os.Readlink(file); err == nil {
			open = append(open, link)
		}
	}
	return open
}

// TestTheSupervisorSaysHowItIsStarted: nobody can start it by itself.
func TestTheSupervisorSaysHowItIsStarted(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, supervisor.Program)
	build := exec.Command("go", "build", "-o", program, "github.com/quartet-node/quartet/cmd/quartet-supervisor")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	help, err := exec.Command(program, "--help").Output()
	if err != nil || !strings.Contains(string(help), `run "quartet node --help"`) {
		t.Errorf("--help: %v: %s", err, help)
	}
	out, err := exec.Command(program).CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 ||
		!strings.Contains(string(out), `quartet-supervisor: there is no plan of a node: run "quartet node"`) {
		t.Errorf("without a plan: %v: %s", err, out)
	}
}

// TestAPartThatCannotWorkEndsItsNode, with what it has said as the reason, also in the process that has made the plan.
func TestAPartThatCannotWorkEndsItsNode(t *testing.T) {
	reader, writer := io.Pipe()
	lines := make(chan []string)
	go func() {
		var all []string
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			all = append(all, scanner.Text())
		}
		lines <- all
	}()
	queue := logqueue.New(writer)
	const fails = "echo 'pleg: --config: it is wrong' >&2; exit 78"
	plan := supervisor.Plan{
		Name: "quartet", StateDir: t.TempDir(), FinalExit: 78,
		Parts: []supervisor.Part{
			{Name: "pleg", Path: "/bin/sh", Args: []string{"-c", fails}, Foreign: true},
			{Name: "syncloop", Path: "/bin/sh", Args: []string{"-c", steady}, Foreign: true},
		},
	}
	err := plan.Run(t.Context(), supervisor.Host{Log: queue, Sockets: &sockets.Set{}})
	queue.Close()
	if closeErr := writer.Close(); closeErr != nil {
		t.Error(closeErr)
	}
	if final := (*supervisor.FinalError)(nil); !errors.As(err, &final) || final.Error() != "pleg: --config: it is wrong" {
		t.Errorf("Run() = %v", err)
	}
	if all := strings.Join(<-lines, "\n"); !strings.Contains(all, "pleg     | pleg: --config: it is wrong") {
		t.Errorf("the log is %s", all)
	}
}
