package rpc_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/require"
)

// serveAs serves grpc.health.v1 on a socket as another user, who answers everybody.
func serveAs(t *testing.T, path string, uid int) {
	t.Helper()
	files, errs := make(chan *os.File, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			errs <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		err = errors.Join(err, unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 10), unix.Chmod(path, 0o666))
		if err != nil {
			errs <- err
			return
		}
		files <- os.NewFile(uintptr(fd), path)
	}()
	var file *os.File
	select {
	case err := <-errs:
		t.Fatal(err)
	case file = <-files:
	}
	listener, err := net.FileListener(file)
	must(t, errors.Join(err, file.Close()))
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		must(t, <-done)
	})
}

// socketsDir returns a directory of sockets in which each user may make files.
func socketsDir(t *testing.T) string {
	t.Helper()
	dir := openDir(t)
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	return dir
}

func check(t *testing.T, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := client(t, address).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// TestASocketThatAnotherUserTookIsRefused: that user serves under the name of a service, and would get its requests.
func TestASocketThatAnotherUserTookIsRefused(t *testing.T) {
	require.Root(t, "becoming another user")
	path := filepath.Join(socketsDir(t), "configmux.sock")
	serveAs(t, path, serviceUser)
	err := check(t, "unix://"+path)
	if status.Code(err) != codes.Unavailable {
		t.Fatalf("a call to an impostor ends with %v, want %v", err, codes.Unavailable)
	}
	for _, want := range []string{
		"unix://" + path + ": ", "user 10241 may not be configmux", "end that process and remove its socket",
		"add the line 'configmux 10241' to " + filepath.Join(filepath.Dir(path), rpc.UsersFile) + " as root",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %q, want %q in it", err, want)
		}
	}
	var impostor *rpc.ImpostorError
	if err := rpc.CheckServer(t.Context(), "unix://"+path); !errors.As(err, &impostor) ||
		impostor.Owner.UID != serviceUser || impostor.Service != "configmux" {
		t.Errorf("CheckServer() = %v, want an ImpostorError of user %d", err, serviceUser)
	}
}

func TestTheUsersOfServicesAreThoseThatRootNames(t *testing.T) {
	require.Root(t, "becoming another user")
	const another = "configmux 10244\n# configmux 10241\n"
	for name, test := range map[string]struct {
		socket, users string
		change        func(path string) error
		refused       string
	}{
		"by number":         {socket: "configmux.sock", users: another + "\nconfigmux\t10241\n"},
		"the metrics":       {socket: "configmux-metrics.sock", users: "configmux 10241\n"},
		"other lines":       {socket: "configmux.sock", users: another, refused: "may not be configmux:"},
		"another service":   {socket: "syncloop.sock", users: "configmux 10241\n", refused: "may not be syncloop:"},
		"a user by name":    {socket: "configmux.sock", users: "configmux root\n", refused: "may not be configmux:"},
		"an unknown name":   {socket: "configmux.sock", users: "configmux no-such-user\n", refused: "the user no-such-user: "},
		"nonsense":          {socket: "configmux.sock", users: "configmux\n", refused: "the line 'configmux' is not SERVICE USER"},
		"not root's":        {socket: "configmux.sock", users: "configmux 10241\n", change: giveAway, refused: "it belongs to user 10241"},
		"others may write":  {socket: "configmux.sock", users: "configmux 10241\n", change: openUp, refused: "(chmod 0644)"},
		"a second name":     {socket: "configmux.sock", users: "configmux 10241\n", change: linkTwice, refused: "one name"},
		"a symbolic link":   {socket: "configmux.sock", users: "configmux 10241\n", change: linkAway, refused: "too many levels"},
		"too long to be it": {socket: "configmux.sock", users: strings.Repeat("#\n", 1<<16), refused: "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := socketsDir(t)
			file := filepath.Join(dir, rpc.UsersFile)
			must(t, os.WriteFile(file, []byte(test.users), 0o644))
			if test.change != nil {
				must(t, test.change(file))
			}
			path := filepath.Join(dir, test.socket)
			serveAs(t, path, serviceUser)
			err := check(t, "unix://"+path)
			if test.refused == "" && err != nil {
				t.Errorf("the service is refused: %v", err)
			}
			if test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("the error is %v, want %q in it", err, test.refused)
			}
		})
	}
}

func giveAway(path string) error  { return os.Chown(path, serviceUser, serviceUser) }
func openUp(path string) error    { return os.Chmod(path, 0o664) }
func linkTwice(path string) error { return os.Link(path, path+"2") }
func linkAway(path string) error {
	return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
}
