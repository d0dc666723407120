package rpc_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/require"
)

// places returns where a service of today has its socket below a new directory, and where v0.1.0 has it.
func places(t *testing.T, service layout.Service) (today, earlier string) {
	t.Helper()
	today = layout.SocketIn(openDir(t), service)
	return today, layout.EarlierSocket(today)
}

// kill ends a listener and leaves its socket, as a killed process does.
func kill(t *testing.T, path string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	listener.SetUnlinkOnClose(false)
	must(t, listener.Close())
}

func TestAClientFindsAServiceOfTheEarlierVersion(t *testing.T) {
	for name, prepare := range map[string]func(today string){
		"no directory":       func(string) {},
		"no socket":          func(today string) { must(t, os.MkdirAll(filepath.Dir(today), 0o755)) },
		"one that is unused": func(today string) { kill(t, today) },
	} {
		t.Run(name, func(t *testing.T) {
			today, earlier := places(t, layout.PLEG)
			prepare(today)
			stop := serve(t, "unix://"+earlier, rpc.NewHealth())
			if err := check(t, "unix://"+today); err != nil {
				t.Error(err)
			}
			if owner, err := rpc.ServerOf("unix://" + today); err != nil || owner.PID != os.Getpid() {
				t.Errorf("ServerOf() = %v, %v, want this process", owner, err)
			}
			must(t, stop())
			if _, err := rpc.Connect(t.Context(), "unix://"+today); err == nil || !strings.Contains(err.Error(), today+":") {
				t.Errorf("nobody serves, and the error is %v, want %s in it", err, today)
			}
		})
	}
}

// TestAClientPrefersTheDirectoryOfTheService: a process at the earlier place gets no request of a service that runs.
func TestAClientPrefersTheDirectoryOfTheService(t *testing.T) {
	today, earlier := places(t, layout.PLEG)
	serve(t, "unix://"+today, rpc.NewHealth())
	must(t, os.RemoveAll(earlier))
	silent, err := net.Listen("unix", earlier)
	must(t, err)
	defer func() { must(t, silent.Close()) }()
	if err := check(t, "unix://"+today); err != nil {
		t.Error(err)
	}
}

func TestAClientOfTheEarlierVersionFindsTheService(t *testing.T) {
	require.Root(t, "the name for the earlier version")
	today, earlier := places(t, layout.PLEG)
	kill(t, earlier)
	for range 2 {
		stop := serve(t, "unix://"+today, rpc.NewHealth())
		if err := check(t, "unix://"+earlier); err != nil {
			t.Error(err)
		}
		if info, err := os.Lstat(earlier); err != nil || info.Mode() != fs.ModeSocket|0o660 {
			t.Errorf("%s is %v, %v, want a socket of mode 0660, which v0.1.0 replaces", earlier, info.Mode(), err)
		}
		must(t, stop())
		for _, path := range []string{today, earlier, today + ".link"} {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", path, err)
			}
		}
	}
}

// TestAKilledServiceLeavesNoNameThatStopsAnEarlierVersion: what it leaves is a socket that nobody serves.
func TestAKilledServiceLeavesNoNameThatStopsAnEarlierVersion(t *testing.T) {
	require.Root(t, "the name for the earlier version")
	today, earlier := places(t, layout.PLEG)
	listener, err := rpc.ListenUnix("unix://"+today, nil, nil)
	must(t, err)
	held, ok := listener.(interface{ SetUnlinkOnClose(unlink bool) })
	if !ok {
		t.Fatal("the listener is no unix socket")
	}
	held.SetUnlinkOnClose(false)
	must(t, os.Rename(earlier, earlier+".kept")) // Close does not find it, as if the process were killed
	must(t, listener.Close())
	must(t, os.Rename(earlier+".kept", earlier))
	serve(t, "unix://"+earlier, rpc.NewHealth())
	if err := check(t, "unix://"+today); err != nil {
		t.Errorf("the earlier version serves, and a client of today says %v", err)
	}
}

func TestOnlyRootMakesTheNameForTheEarlierVersion(t *testing.T) {
	require.Root(t, "directories of other users")
	for name, change := range map[string]func(dir, earlier string) error{
		"others may write":        func(dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) },
		"the group may write":     func(dir, _ string) error { return os.Chmod(dir, 0o775) },
		"another user's":          func(dir, _ string) error { return os.Chown(dir, serviceUser, nodeGroup) },
		"a link that root made":   func(_, earlier string) error { return os.Symlink("pleg/pleg.sock", earlier) },
		"a file in its place":     func(_, earlier string) error { return os.WriteFile(earlier, nil, 0o600) },
		"no directory of its own": nil,
	} {
		t.Run(name, func(t *testing.T) {
			today, earlier := places(t, layout.PLEG)
			before, path := "", today
			if change == nil {
				path = filepath.Join(filepath.Dir(earlier), "other", "pleg.sock")
			} else {
				must(t, change(filepath.Dir(earlier), earlier))
			}
			if info, err := os.Lstat(earlier); err == nil {
				before = info.Mode().String()
			}
			stop := serve(t, "unix://"+path, rpc.NewHealth())
			after := ""
			if info, err := os.Lstat(earlier); err == nil {
				after = info.Mode().String()
			}
			if before != after {
				t.Errorf("%s was %q and is %q", earlier, before, after)
			}
			if err := check(t, "unix://"+path); err != nil {
				t.Error(err)
			}
			must(t, stop())
		})
	}
}

// TestAnotherNodeOfTheEarlierVersionIsFound: two nodes do not share a directory of sockets.
func TestAnotherNodeOfTheEarlierVersionIsFound(t *testing.T) {
	today, earlier := places(t, layout.PLEG)
	serve(t, "unix://"+earlier, rpc.NewHealth())
	if _, err := rpc.ListenUnix("unix://"+today, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "serves on "+earlier) {
		t.Errorf("ListenUnix() error = %v, want %q in it", err, "serves on "+earlier)
	}
}

// TestAnImpostorAtTheEarlierPlace gets no requests, and does not keep the service from starting.
func TestAnImpostorAtTheEarlierPlace(t *testing.T) {
	require.Root(t, "becoming another user")
	today, earlier := places(t, layout.PLEG)
	dir := filepath.Dir(earlier)
	must(t, os.Chmod(dir, 0o777|os.ModeSticky)) // as v0.1.0 has it
	serveAs(t, earlier, serviceUser)
	err := check(t, "unix://"+today)
	if status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "unix://"+earlier+": ") || !strings.Contains(err.Error(), "may not be pleg") ||
		!strings.Contains(err.Error(), filepath.Join(dir, rpc.UsersFile)) {
		t.Errorf("a call to an impostor ends with %v, want %v that names it", err, codes.Unavailable)
	}
	must(t, os.Chmod(dir, 0o711))
	serve(t, "unix://"+today, rpc.NewHealth())
	if err := check(t, "unix://"+today); err != nil {
		t.Error(err)
	}
	if owner, err := rpc.ServerOf("unix://" + earlier); err != nil || owner.UID != 0 {
		t.Errorf("the name for the earlier version is %v's, %v, want this process's", owner, err)
	}
}

// TestTheFileOfUsersIsNotInTheDirectoryOfAService, where the service's user could write it.
func TestTheFileOfUsersIsNotInTheDirectoryOfAService(t *testing.T) {
	require.Root(t, "becoming another user")
	today, earlier := places(t, layout.ConfigMux)
	own, shared := filepath.Dir(today), filepath.Dir(earlier)
	must(t, os.Mkdir(own, 0o755))
	must(t, os.Chown(own, serviceUser, nodeGroup))
	const line = "configmux 10241\n"
	must(t, os.WriteFile(filepath.Join(own, rpc.UsersFile), []byte(line), 0o644))
	serveAs(t, today, serviceUser)
	if err := check(t, "unix://"+today); err == nil || !strings.Contains(err.Error(), "may not be configmux") {
		t.Errorf("a service that names itself is not refused: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(shared, rpc.UsersFile), []byte(line), 0o644))
	if err := check(t, "unix://"+today); err != nil {
		t.Errorf("the service that root names is refused: %v", err)
	}
}

// TestAServiceDoesNotServeInAnothersDirectory, in which that user could take its name.
func TestAServiceDoesNotServeInAnothersDirectory(t *testing.T) {
	require.Root(t, "directories of other users")
	for name, change := range map[string]func(dir string) error{
		"another user's": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, serviceUser, nodeGroup))
		},
		"a link": func(dir string) error { return os.Symlink(filepath.Dir(dir), dir) },
	} {
		t.Run(name, func(t *testing.T) {
			today, _ := places(t, layout.PLEG)
			must(t, change(filepath.Dir(today)))
			if _, err := rpc.ListenUnix("unix://"+today, nil, nil); err == nil ||
				!strings.Contains(err.Error(), filepath.Dir(today)+" is not a directory of root") {
				t.Errorf("ListenUnix() error = %v, want one that names the directory", err)
			}
		})
	}
}
