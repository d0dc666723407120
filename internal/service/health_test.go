package service_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/internal/standby"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/test/require"
)

// serve serves the health of a process until the test ends.
func serve(t *testing.T, socket string, health *rpc.Health) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: "unix://" + socket, Health: health, Register: func(*grpc.Server) {}, Ready: func() { close(ready) },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
}

// health runs `NAME health` with flags, and returns its exit code and its output.
func health(t *testing.T, name nodeconfig.Service, args ...string) (code int, output string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = service.Start(t.Context(), name, append([]string{"health"}, args...), &stdout, &stderr, nil)
	return code, stdout.String() + stderr.String()
}

func TestHealthSaysWhatAProcessWaitsForInOneLine(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pleg.sock")
	state := rpc.NewHealth()
	serve(t, socket, state)
	for _, tc := range []struct {
		what, reason, want string
	}{
		{"runtime", "", "pleg: serving\n"},
		{"runtime", "it is away", "pleg: serving; waits for: runtime\n"},
		{"relist", "none has ended", "pleg: serving; waits for: relist, runtime\n"},
		{"runtime", "", "pleg: serving; waits for: relist\n"},
	} {
		state.Set(tc.what, tc.reason)
		// The service's own address flag has the same effect as --listen.
		for _, flag := range []string{"--listen", "--pleg-address"} {
			if code, output := health(t, nodeconfig.PLEG, flag, "unix://"+socket); code != 0 || output != tc.want {
				t.Errorf("%s: code %d, %q, want %q", flag, code, output, tc.want)
			}
		}
	}
}

func TestHealthOfAProcessThatDoesNotServe(t *testing.T) {
	dir := t.TempDir()
	hung, stale := filepath.Join(dir, "hung.sock"), filepath.Join(dir, "stale.sock")
	listener, err := net.Listen("unix", hung)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	}()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: stale}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Close(fd); err != nil {
		t.Fatal(err)
	}
	for socket, want := range map[string]string{
		filepath.Join(dir, "none.sock"): "no such file or directory: see that it runs; --listen names its address",
		stale:                           "connection refused: see that it runs",
		hung:                            fmt.Sprintf("pid %d of user %d) takes connections on unix://%s and does not answer within 2s: it hangs", os.Getpid(), os.Geteuid(), hung),
	} {
		begin := time.Now()
		code, output := health(t, nodeconfig.SyncLoop, "--listen", "unix://"+socket)
		if code != 1 || !strings.HasPrefix(output, "syncloop: ") || !strings.Contains(output, want) ||
			strings.Count(output, "\n") != 1 {
			t.Errorf("code %d, %q, want %q in a line", code, output, want)
		}
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("it took %v", took)
		}
	}
}

func TestHealthTakesTheFlagsOfItsService(t *testing.T) {
	if code, output := health(t, nodeconfig.PLEG, "--help"); code != 0 || !strings.Contains(output, "pleg health [flags]") {
		t.Errorf("code %d, %q, want 0 and with %q", code, output, "pleg health [flags]")
	}
	if code, output := health(
		t,
		nodeconfig.PLEG,
		"--standby",
	); code != 1 ||
		!strings.Contains(output, "unknown flag: --standby") {
		t.Errorf("code %d, %q, want 1 and with %q", code, output, "unknown flag: --standby")
	}
}

// TestHealthOfAStandby runs one configmux here, and a standby in a PID namespace of its own, as in a container that
// shares the directories. Each reports its own state.
func TestHealthOfAStandby(t *testing.T) {
	if dir := os.Getenv("SERVICE_TEST_STANDBY"); dir != "" {
		standByAndSay(t, dir)
		return
	}
	require.Root(t, "a process namespace")
	dir := t.TempDir()
	held, err := statedir.Lock(dir, string(nodeconfig.ConfigMux))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	}()
	socket := filepath.Join(dir, "configmux.sock")
	serve(t, socket, rpc.NewHealth())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "-test.run=^TestHealthOfAStandby$", "-test.v")
	child.Env = append(os.Environ(), "SERVICE_TEST_STANDBY="+dir)
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	out, err := child.CombinedOutput()
	if want := fmt.Sprintf(
		"code 0: configmux: standby of configmux with pid %d on ",
		os.Getpid(),
	); err != nil ||
		!strings.Contains(string(out), want) {
		t.Errorf("%v, %s\nwant %q", err, out, want)
	}
	if code, output := health(
		t,
		nodeconfig.ConfigMux,
		"--state-dir",
		dir,
		"--listen",
		"unix://"+socket,
	); code != 0 ||
		output != "configmux: serving\n" {
		t.Errorf("the one that serves: code %d, %q, want 0 and %q", code, output, "configmux: serving\n")
	}
	// Without a standby, only the serving process in the other container can answer.
	child = exec.Command(self, "-test.run=^TestHealthOfAStandby$", "-test.v")
	child.Env = append(os.Environ(), "SERVICE_TEST_STANDBY="+dir, "SERVICE_TEST_NOBODY=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "code 0: configmux: serving") {
		t.Errorf("nobody stands by: %v, %s, want text with %q", err, out, "code 0: configmux: serving")
	}
}

// standByAndSay is the child: it is a standby, if the test requires one, and requests the health of the local
// configmux.
func standByAndSay(t *testing.T, dir string) {
	if os.Getenv("SERVICE_TEST_NOBODY") == "" {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := standby.Lock(ctx, standby.Config{
				StateDir: dir, Service: nodeconfig.ConfigMux, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
			}); err == nil {
				t.Error("it has the lock")
			}
		}()
		defer func() { <-done }()
		defer cancel()
		for end := time.Now().Add(60 * time.Second); ; {
			_, ok, err := standby.Ask(ctx, dir, nodeconfig.ConfigMux)
			if ok {
				break
			}
			if err != nil || time.Now().After(end) {
				t.Fatalf("it does not stand by: %v", err)
			}
		}
	}
	code, output := health(
		t,
		nodeconfig.ConfigMux,
		"--state-dir",
		dir,
		"--listen",
		"unix://"+filepath.Join(dir, "configmux.sock"),
	)
	fmt.Printf("code %d: %s", code, output)
}
