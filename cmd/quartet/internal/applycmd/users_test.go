package applycmd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/require"
)

// asksAt is the variable that makes a process of this test a client of an address.
const asksAt = "APPLYCMD_TEST_ADDRESS"

// Only root and the users of --secret-uids get secrets. Other allowed users get config maps, claims,
// and the names of secrets.
func TestSecretsAreGivenToNamedUsersOnly(t *testing.T) {
	if address := os.Getenv(asksAt); address != "" {
		ask(t, address)
		return
	}
	require.Root(t, "another user's process")
	n := newNode(t, "--allowed-uids=12345", "--secret-uids=12346")
	// Other users need access to the sockets.
	for _, dir := range []string{n.dir, n.stateDir, n.layout.SocketDir()} {
		must(t, os.Chmod(dir, 0o711))
	}
	n.expect(secret("login", "s"), []string{"apply", "-f", "-"}, "secret/login created\n", "", "")
	for uid, want := range map[uint32]string{
		0:     "ConfigMap OK, Secret OK, PersistentVolumeClaim OK, all OK, list 1",
		12345: "ConfigMap OK, Secret PermissionDenied, PersistentVolumeClaim OK, all PermissionDenied, list 1",
		12346: "ConfigMap OK, Secret OK, PersistentVolumeClaim OK, all OK, list 1",
		12347: "ConfigMap Unavailable, Secret Unavailable, PersistentVolumeClaim Unavailable, all Unavailable, list 0",
	} {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestSecretsAreGivenToNamedUsersOnly$")
		cmd.Env = append(os.Environ(), asksAt+"="+n.layout.Address(layout.ConfigMux))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 0}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "answers: "+want+"\n") {
			t.Errorf("user %d: %v\n%s\nwant %s", uid, err, out, want)
		}
	}
}

// ask runs in the process of another user.
func ask(t *testing.T, address string) {
	t.Helper()
	conn, err := rpc.Dial(address)
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	client := configv1.NewConfigServiceClient(conn)
	var answers []string
	for _, kind := range []string{"ConfigMap", "Secret", "PersistentVolumeClaim", ""} {
		watch, err := client.WatchObjects(t.Context(), &configv1.WatchObjectsRequest{Kind: kind})
		if err == nil {
			_, err = watch.Recv()
		}
		if kind == "" {
			kind = "all"
		}
		answers = append(answers, fmt.Sprintf("%s %v", kind, status.Code(err)))
	}
	listed, _ := client.ListObjects(t.Context(), &configv1.ListObjectsRequest{})
	fmt.Printf("answers: %s, list %d\n", strings.Join(answers, ", "), len(listed.GetObjects()))
}

// Its memory contains secrets: the kernel must not write core dumps of it, and other processes of its user must not
// read it. For such a process the files in /proc belong to root.
func TestTheMemoryOfConfigmuxIsNeverDumped(t *testing.T) {
	require.Root(t, "a process of another user")
	const user = 12345
	dir, err := os.MkdirTemp("", "q")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chown(dir, user, user))
	must(t, os.Chmod(filepath.Dir(configmux), 0o711))
	address := "unix://" + filepath.Join(dir, "configmux.sock")
	must(t, os.WriteFile(filepath.Join(dir, rpc.UsersFile), []byte("configmux 12345\n"), 0o644))
	cmd := exec.Command(
		configmux,
		"--state-dir="+filepath.Join(dir, "state"),
		"--listen="+address,
		"--metrics-listen=none",
		"--hostname-override=node",
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: user, Gid: user},
		Pdeathsig:  syscall.SIGKILL,
	}
	must(t, cmd.Start())
	t.Cleanup(func() {
		must(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("configmux: %v", err)
		}
	})
	conn, err := rpc.Dial(address)
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	_, err = configv1.NewConfigServiceClient(conn).
		ListSources(t.Context(), &configv1.ListSourcesRequest{}, grpc.WaitForReady(true))
	must(t, err)
	info, err := os.Stat(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	must(t, err)
	if stat, is := info.Sys().(*syscall.Stat_t); !is || stat.Uid != 0 {
		t.Errorf("the process of user %d is of %+v in /proc, want root", user, info.Sys())
	}
}
