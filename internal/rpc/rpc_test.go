package rpc_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// callsPatience is how long a stop waits for unary calls in flight: a faster stop has not waited for any.
const callsPatience = 5 * time.Second

func serve(t *testing.T, address string, health *rpc.Health, allowed ...int) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: address, Health: health, Users: rights.Users{rights.Observe: allowed},
			Register: func(*grpc.Server) {}, Ready: func() { close(ready) },
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	return func() error {
		cancel()
		return <-done
	}
}

func client(t *testing.T, address string) grpc_health_v1.HealthClient {
	t.Helper()
	conn, err := rpc.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return grpc_health_v1.NewHealthClient(conn)
}

func TestHealthIsServedAtOnceAndSaysWhatIsMissing(t *testing.T) {
	address := "unix://" + filepath.Join(t.TempDir(), "s.sock")
	health := rpc.NewHealth()
	stop := serve(t, address, health)
	c := client(t, address)
	check := func(service string, want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		got, err := c.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		if got.GetStatus() != want {
			t.Errorf("health of %q is %v, want %v", service, got.GetStatus(), want)
		}
	}
	health.Set("runtime", "the runtime does not answer")
	check("", grpc_health_v1.HealthCheckResponse_SERVING)
	check("runtime", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if got := health.Waiting(); len(got) != 1 || got[0] != "the runtime does not answer" {
		t.Errorf("waiting for %q, want the one sentence", got)
	}
	health.Set("runtime", "")
	check("runtime", grpc_health_v1.HealthCheckResponse_SERVING)
	if err := stop(); err != nil {
		t.Errorf("a stop is not an error, got %v", err)
	}
}

func TestAStreamThatNeverEndsDoesNotDelayTheStop(t *testing.T) {
	address := "unix://" + filepath.Join(t.TempDir(), "s.sock")
	stop := serve(t, address, rpc.NewHealth())
	watch, err := client(t, address).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > callsPatience {
		t.Errorf("the stop took %v", took)
	}
}

func TestSocketHasItsModeAndReplacesAStaleOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "s.sock")
	for range 2 {
		stop := serve(t, "unix://"+path, rpc.NewHealth())
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != 0o660 {
			t.Errorf("mode %o, want 660", got)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		// A killed process leaves a socket that nothing serves.
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Close(fd); err != nil {
			t.Fatal(err)
		}
	}
}

// TestASocketOfAnotherNodeIsNotTaken checks the error of a second node with the first one's directory of sockets.
func TestASocketOfAnotherNodeIsNotTaken(t *testing.T) {
	address := "unix://" + filepath.Join(t.TempDir(), "s.sock")
	stop := serve(t, address, rpc.NewHealth())
	_, err := rpc.ListenUnix(address, nil, nil)
	comm, readErr := os.ReadFile("/proc/self/comm")
	if readErr != nil {
		t.Fatal(readErr)
	}
	for _, want := range []string{
		fmt.Sprintf("another process (%s with pid %d of user %d) serves on ", strings.TrimSpace(string(comm)), os.Getpid(), os.Geteuid()),
		"two nodes do not share a directory of sockets, so give each its own",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for owner, want := range map[rpc.Owner]string{
		{UID: 10241}:         "a process of another container (user 10241)",
		{PID: 7, UID: 10241}: "another process (pid 7 of user 10241)",
	} {
		if got := owner.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestAFileThatIsNoSocketIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rpc.ListenUnix(
		"unix://"+path,
		nil,
		nil,
	); err == nil ||
		!strings.Contains(err.Error(), "is not a socket: move it away") {
		t.Errorf("ListenUnix() error = %v, want an error with %q", err, "is not a socket: move it away")
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestAnAddressWithoutAFileIsServedToo(t *testing.T) {
	address := fmt.Sprintf("unix-abstract:quartet-test/%d", os.Getpid())
	stop := serve(t, address, rpc.NewHealth())
	if got, err := client(
		t,
		address,
	).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil ||
		got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("Check() = %v, %v, want Status %v", got, err, grpc_health_v1.HealthCheckResponse_SERVING)
	}
	if owner, err := rpc.ServerOf(address); err != nil || owner.PID != os.Getpid() {
		t.Errorf("served by %v, %v, want PID %v", owner, err, os.Getpid())
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if owner, err := rpc.ServerOf(address); err == nil {
		t.Errorf("after the stop it is served by %v", owner)
	}
}

func TestAddressesThatCannotWorkAreRefusedWithTheReason(t *testing.T) {
	taken := "unix://" + filepath.Join(t.TempDir(), "s.sock")
	stop := serve(t, taken, rpc.NewHealth())
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	for address, want := range map[string]string{
		taken:                                 " serves on ",
		"127.0.0.1:0":                         "want unix:///ABSOLUTE/PATH",
		"unix://relative":                     "want unix:///ABSOLUTE/PATH",
		"unix:///" + strings.Repeat("x", 200): "choose a shorter directory",
	} {
		err := rpc.Serve(t.Context(), rpc.Config{Address: address, Health: rpc.NewHealth(), Register: func(*grpc.Server) {}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", address, err, want)
		}
	}
}

// TestForeignUsersAreRefused connects as other users, with this test binary.
func TestForeignUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	const allowed, foreign = 10241, 65534
	path := filepath.Join(openDir(t), "s.sock")
	stop := serve(t, "unix://"+path, rpc.NewHealth(), allowed)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if got := pingAs(t, path, foreign, foreign); got != 0 {
		t.Errorf("the server sent %d bytes to a foreign user, want the connection closed", got)
	}
	refused := as(t, foreign, foreign, func() error { return rpc.CheckServer(t.Context(), "unix://"+path) })
	if want := "unix://" + path + " refuses user 65534, who has no role"; !strings.HasPrefix(fmt.Sprint(refused), want) {
		t.Errorf("a foreign user is told %v, want %s", refused, want)
	}
	for _, uid := range []int{0, allowed} {
		if err := as(t, uid, uid, func() error { return rpc.CheckServer(t.Context(), "unix://"+path) }); err != nil {
			t.Errorf("user %d is told %v", uid, err)
		}
		if got := pingAs(t, path, uid, uid); got == 0 {
			t.Errorf("the server sent nothing to user %d", uid)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// openDir returns a directory that other users may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rpc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
