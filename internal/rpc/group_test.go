package rpc_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/require"
)

// The users and the group of a node whose services run in containers.
const (
	nodeGroup     = 10240
	serviceUser   = 10241
	neighbourUser = 10244
	strangerUser  = 65534
)

// TestAServiceOfAnotherUserHasItsSocketInASharedDirectory runs the test binary as a service without root, in a
// directory of root and the node's group in which each user may remove only its own files.
func TestAServiceOfAnotherUserHasItsSocketInASharedDirectory(t *testing.T) {
	if path := os.Getenv("RPC_TEST_SOCKET"); path != "" {
		serveInSharedDirectory(t, path)
		return
	}
	require.Root(t, "becoming another user")
	dir := openDir(t)
	binary := copyOfThisBinary(t, dir)
	sockets := filepath.Join(dir, "sockets")
	must(t, os.Mkdir(sockets, 0o700))
	must(t, os.Chown(sockets, 0, nodeGroup))
	must(t, syscall.Chmod(sockets, 0o1771))
	path := filepath.Join(sockets, "s.sock")
	// First in an empty directory, then over the remains of the first process, which is killed.
	for _, what := range []string{"new", "stale"} {
		child := asUser(t, binary, serviceUser, nodeGroup, "RPC_TEST_SOCKET="+path)
		info, err := os.Stat(path)
		must(t, err)
		owner := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // so it is on Linux
		if info.Mode().Perm() != 0o660 || owner.Uid != serviceUser || owner.Gid != nodeGroup {
			t.Errorf("%s: mode %o, owner %d:%d, want 0o660, %d and %d",
				what, info.Mode().Perm(), owner.Uid, owner.Gid, serviceUser, nodeGroup)
		}
		for uid, welcome := range map[int]bool{0: true, serviceUser: true, neighbourUser: true, strangerUser: false} {
			if got := pingAs(t, path, uid, nodeGroup); (got > 0) != welcome {
				t.Errorf("%s: user %d of the group got %d bytes", what, uid, got)
			}
		}
		must(t, child.Process.Kill())
		if err := child.Wait(); err == nil {
			t.Error("the service ended well, though killed")
		}
	}
	// Another user of the group cannot take it, because the directory is sticky; a user outside of the group cannot even
	// check whether it is served.
	for _, gid := range []uint32{nodeGroup, strangerUser} {
		child := command(binary, strangerUser, gid, "RPC_TEST_SOCKET="+path)
		if out, err := child.CombinedOutput(); err == nil ||
			!strings.Contains(string(out), "user 65534 may not: run as the owner of "+path) {
			t.Errorf("a stranger took the socket: %v, %s", err, out)
		}
	}
}

// serveInSharedDirectory is the child: it serves until it is killed.
func serveInSharedDirectory(t *testing.T, path string) {
	listener, err := rpc.ListenUnix("unix://"+path, []int{neighbourUser}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stdout.WriteString("serving\n"); err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		// The other end may be gone already.
		if _, err := conn.Write([]byte("welcome")); err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
}

// asUser starts the test that calls it as another user, and waits until it serves.
func asUser(t *testing.T, binary string, uid, gid uint32, env string) *exec.Cmd {
	t.Helper()
	child := command(binary, uid, gid, env)
	out, err := child.StdoutPipe()
	must(t, err)
	must(t, child.Start())
	// Not Pdeathsig: threads of this test end while the child has to live, because threads that changed their user are not
	// reused.
	t.Cleanup(func() { _ = child.Process.Kill() })
	buf := make([]byte, len("serving\n"))
	if n, err := out.Read(buf); err != nil || string(buf[:n]) != "serving\n" {
		t.Fatalf("the service says %q, %v, want %q", buf[:n], err, "serving\n")
	}
	return child
}

func command(binary string, uid, gid uint32, env string) *exec.Cmd {
	child := exec.Command(binary, "-test.run=^TestAServiceOfAnotherUserHasItsSocketInASharedDirectory$")
	child.Env = append(os.Environ(), env)
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	return child
}

// copyOfThisBinary returns the path of a copy that other users can reach.
func copyOfThisBinary(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	content, err := os.ReadFile(self)
	must(t, err)
	path := filepath.Join(dir, "rpc.test")
	must(t, os.WriteFile(path, content, 0o755))
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
