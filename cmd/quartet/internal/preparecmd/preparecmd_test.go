package preparecmd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/cmd/quartet/internal/preparecmd"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/require"
)

// prepare runs the command on a thread with a mount namespace of its own, whose mounts it may change. It runs in this
// process, because the command starts none.
func prepare(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			result <- err
			return
		}
		cmd := preparecmd.Command()
		cmd.SilenceUsage = true
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		result <- cmd.Execute()
	}()
	err := <-result
	return out.String(), err
}

func asRoot(t *testing.T) {
	t.Helper()
	require.Root(t, "a directory of another user")
}

// TestEachServiceGetsDirectoriesOfItsOwn: another run keeps their content.
func TestEachServiceGetsDirectoriesOfItsOwn(t *testing.T) {
	asRoot(t)
	state := filepath.Join(harness.ShortDir(t), "state")
	manifests := filepath.Join(t.TempDir(), "manifests")
	for range 2 {
		if out, err := prepare(
			t,
			"--state-dir",
			state,
			"--manifests",
			manifests,
		); err != nil ||
			!strings.Contains(out, manifests) {
			t.Fatalf("prepare(--state-dir, --manifests) error = %v: %s, want text with %q", err, out, manifests)
		}
		for name, want := range map[string]struct {
			uid, gid uint32
			mode     fs.FileMode
		}{
			"run":            {0, 0, 0o711},
			"run/configmux":  {10241, 10240, 0o710},
			"run/pleg":       {0, 10240, 0o710},
			"run/syncloop":   {0, 10240, 0o710},
			"run/nodestatus": {10244, 10240, 0o710},
			"run/users":      {0, 0, 0o644},
			"cri":            {0, 0, 0o700},
			"configmux":      {10241, 10240, 0o700},
			"pleg":           {0, 10240, 0o700},
			"syncloop":       {0, 10240, 0o700},
			"nodestatus":     {10244, 10240, 0o700},
			"cluster":        {10244, 10240, 0o750},
			"root":           {0, 0, 0o711},
			"logs/pods":      {0, 0, 0o755},
		} {
			info, err := os.Stat(filepath.Join(state, name))
			if err != nil {
				t.Fatal(err)
			}
			owner := info.Sys().(*syscall.Stat_t)
			if got := info.Mode() &^ fs.ModeDir; got != want.mode || owner.Uid != want.uid || owner.Gid != want.gid {
				t.Errorf("%s is %v of %d:%d, want %v of %d:%d", name, got, owner.Uid, owner.Gid, want.mode, want.uid, want.gid)
			}
		}
		users := filepath.Join(state, "run", "users")
		const want = "\nconfigmux 10241\nnodestatus 10244\n"
		if text, err := os.ReadFile(users); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has %q, %v", users, text, err)
		}
		// A service may have made the file before, to name itself.
		if err := os.Chown(users, 10241, 10240); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(state, "configmux", "kept"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(manifests, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(manifests); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the mode that the operator gave the manifests' directory has changed: %v, %v", info.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(state, "configmux", "kept")); err != nil {
		t.Error(err)
	}
}

func TestAStateDirectoryThatCannotBeUsedSaysWhatToDo(t *testing.T) {
	asRoot(t)
	file := filepath.Join(harness.ShortDir(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"/var/lib/quartet": "choose another, for example /var/lib/quartet-compose",
		filepath.Join(harness.ShortDir(t), strings.Repeat("x", 80)): "too long",
		filepath.Join(file, "state"):                                "choose a --state-dir",
	} {
		if out, err := prepare(
			t,
			"--state-dir",
			dir,
		); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v %s, want %q", dir, err, out, want)
		}
	}
}

// TestAServiceCannotTouchWhatIsAnothers tries as the user of a service what one who owns it would try.
func TestAServiceCannotTouchWhatIsAnothers(t *testing.T) {
	asRoot(t)
	dir := harness.ShortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(dir, "state")
	if out, err := prepare(t, "--state-dir", state, "--manifests", filepath.Join(t.TempDir(), "m")); err != nil {
		t.Fatal(err, out)
	}
	at := func(name string) string { return filepath.Join(state, name) }
	listen := func(name string) error {
		socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: at(name), Net: "unix"})
		if err != nil {
			return err
		}
		socket.SetUnlinkOnClose(false)
		return socket.Close()
	}
	for _, name := range []string{"run/pleg/pleg.sock", "cri/containerd.sock"} {
		if err := listen(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"configmux/secrets.key", "nodestatus/state", "cluster/kubeconfig"} {
		if err := os.WriteFile(at(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name string) error { return os.WriteFile(at(name), nil, 0o600) }
	read := func(name string) error { _, err := os.ReadFile(at(name)); return err }
	mine := func(name string) error { return errors.Join(create(name), os.Remove(at(name))) }
	over := func(from, to string) error {
		if err := create(from); err != nil {
			return fmt.Errorf("its own file: %v", err) //nolint:errorlint // only the rename may be refused
		}
		return os.Rename(at(from), at(to))
	}
	everybodys := map[string]func() error{
		"use the runtime's socket": func() error {
			conn, err := net.Dial("unix", at("cri/containerd.sock"))
			return errors.Join(err, closing(conn))
		},
		"write a log":                     func() error { return create("logs/pods/file") },
		"make a file of the node":         func() error { return create("syncloop/file") },
		"list the state of syncloop":      func() error { _, err := os.ReadDir(at("syncloop")); return err },
		"bind the socket of syncloop":     func() error { return listen("run/syncloop/syncloop.sock") },
		"take the place of a service":     func() error { return listen("run/configmux.sock.new") },
		"remove the directory of sockets": func() error { return os.Remove(at("run/syncloop")) },
	}
	// Those of metrics and of the command line have no directory.
	guests := map[string]func() error{
		"read the key of secrets":      func() error { return read("configmux/secrets.key") },
		"read the state of nodestatus": func() error { return read("nodestatus/state") },
		"bind a socket of configmux":   func() error { return listen("run/configmux/configmux.sock") },
		"bind a socket of nodestatus":  func() error { return listen("run/nodestatus/nodestatus.sock") },
		"write the node's kubeconfig":  func() error { return create("cluster/kubeconfig") },
		"write the file users":         func() error { return create("run/users") },
	}
	for user, refused := range map[int]map[string]func() error{
		10245: guests,
		10246: guests,
		10241: {
			"read the state of nodestatus":     func() error { return read("nodestatus/state") },
			"write the node's kubeconfig":      func() error { return create("cluster/kubeconfig") },
			"write the files of pods":          func() error { return create("root/file") },
			"write the file users":             func() error { return create("run/users") },
			"replace the file users":           func() error { return over("run/configmux/mine", "run/users") },
			"make a directory beside the node": func() error { return os.Mkdir(at("another"), 0o700) },
			"bind the socket of nodestatus":    func() error { return listen("run/nodestatus/nodestatus.sock") },
			"bind the metrics of nodestatus":   func() error { return listen("run/nodestatus/nodestatus-metrics.sock") },
			"bind where v0.1.0 has it":         func() error { return listen("run/nodestatus.sock.new") },
			"remove the socket of pleg":        func() error { return os.Remove(at("run/pleg/pleg.sock")) },
			"replace the socket of pleg":       func() error { return over("run/configmux/mine", "run/pleg/pleg.sock") },
			"rename the socket of pleg":        func() error { return os.Rename(at("run/pleg/pleg.sock"), at("run/configmux/a")) },
			"link the socket of pleg":          func() error { return os.Link(at("run/pleg/pleg.sock"), at("run/configmux/b")) },
			"remove the directory of pleg":     func() error { return os.Remove(at("run/pleg")) },
			"rename the directory of pleg":     func() error { return os.Rename(at("run/pleg"), at("run/configmux/c")) },
			"rename its own directory":         func() error { return os.Rename(at("run/configmux"), at("run/pleg2")) },
			"remove the link of v0.1.0":        func() error { return os.Remove(at("run/pleg.sock")) },
			"replace the link of v0.1.0":       func() error { return over("run/configmux/mine", "run/pleg.sock") },
			"list the directory of pleg":       func() error { _, err := os.ReadDir(at("run/pleg")); return err },
		},
		10244: {
			"read the key of secrets": func() error { return read("configmux/secrets.key") },
			"write the applied pods":  func() error { return create("configmux/applied") },
			"remove the file users":   func() error { return os.Remove(at("run/users")) },
			"bind the socket of pleg": func() error { return listen("run/pleg/pleg.sock2") },
		},
	} {
		for _, tries := range []map[string]func() error{refused, everybodys} {
			for what, do := range tries {
				if err := as(user, do); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("user %d may %s: %v", user, what, err)
				}
			}
		}
	}
	for user, names := range map[int][]string{
		10241: {"configmux/file", "run/configmux/configmux.sock"}, 10244: {"cluster/file", "run/nodestatus/nodestatus.sock"},
	} {
		for _, name := range names {
			if err := as(user, func() error { return mine(name) }); err != nil {
				t.Errorf("user %d may not make %s: %v", user, name, err)
			}
		}
	}
}

// closing closes a connection, if there is one.
func closing(conn net.Conn) error {
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// as calls a function as another user of the group of the services.
func as(user int, do func() error) error {
	const group, none = 10240, ^uintptr(0)
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		_, _, groupErr := syscall.RawSyscall(syscall.SYS_SETRESGID, none, group, none)
		_, _, groupsErr := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0)
		_, _, userErr := syscall.RawSyscall(syscall.SYS_SETRESUID, none, uintptr(user), none)
		for _, errno := range []syscall.Errno{groupErr, groupsErr, userErr} {
			if errno != 0 {
				result <- fmt.Errorf("becoming user %d: %w", user, errno)
				return
			}
		}
		result <- do()
	}()
	return <-result
}

// TestProgramsOfTheEarlierVersionFindTheSockets by links, which do not depend on where the directory is.
func TestProgramsOfTheEarlierVersionFindTheSockets(t *testing.T) {
	asRoot(t)
	state := filepath.Join(harness.ShortDir(t), "state")
	run := filepath.Join(state, "run")
	again := func() {
		t.Helper()
		if out, err := prepare(t, "--state-dir", state, "--manifests", filepath.Join(t.TempDir(), "m")); err != nil {
			t.Fatal(err, out)
		}
	}
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	// One process of the earlier version runs, another was killed.
	running, err := net.Listen("unix", filepath.Join(run, "pleg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	killed, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(run, "syncloop.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	killed.SetUnlinkOnClose(false)
	if err := killed.Close(); err != nil {
		t.Fatal(err)
	}
	again()
	if info, err := os.Lstat(filepath.Join(run, "pleg.sock")); err != nil || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("the socket of the running process is now %v, %v", info, err)
	}
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		again()
		for _, service := range []string{"configmux", "pleg", "syncloop", "nodestatus"} {
			for _, name := range []string{service + ".sock", service + "-metrics.sock"} {
				if to, err := os.Readlink(filepath.Join(run, name)); err != nil || to != service+"/"+name {
					t.Errorf("%s leads to %q, %v, want %s", name, to, err, service+"/"+name)
				}
			}
		}
	}
}

// TestNamesThatAServiceTookBeforeAnUpgradeAreRemoved: in the directory of v0.1.0 each service could make names.
func TestNamesThatAServiceTookBeforeAnUpgradeAreRemoved(t *testing.T) {
	asRoot(t)
	dir := harness.ShortDir(t)
	state, secret := filepath.Join(dir, "state"), filepath.Join(dir, "roots")
	run := filepath.Join(state, "run")
	for path, mode := range map[string]fs.FileMode{dir: 0o755, state: 0o755, secret: 0o700, run: 0o777 | fs.ModeSticky} {
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := as(10241, func() error {
		return errors.Join(
			os.Symlink(secret, filepath.Join(run, "configmux")),
			os.MkdirAll(filepath.Join(run, "pleg", "pleg.sock"), 0o777),
			os.WriteFile(filepath.Join(run, "nodestatus"), nil, 0o600),
			os.MkdirAll(filepath.Join(run, "syncloop.sock", "full"), 0o700),
		)
	}); err != nil {
		t.Fatal(err)
	}
	if out, err := prepare(t, "--state-dir", state, "--manifests", filepath.Join(t.TempDir(), "m")); err != nil {
		t.Fatal(err, out)
	}
	for name, uid := range map[string]uint32{"configmux": 10241, "pleg": 0, "nodestatus": 10244} {
		info, err := os.Lstat(filepath.Join(run, name))
		if err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uid {
			t.Errorf("%s is %v, %v, want a directory of user %d", name, info, err, uid)
		}
		if entries, err := os.ReadDir(filepath.Join(run, name)); err != nil || len(entries) > 0 {
			t.Errorf("%s has %v, %v, want nothing", name, entries, err)
		}
	}
	info, err := os.Stat(secret)
	if err != nil || info.Mode().Perm() != 0o700 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the directory that a service linked is changed: %v, %v", info, err)
	}
}
