package dockerhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/process"
	"github.com/quartet-node/quartet/test/eventually"
)

const (
	// startTimeout bounds the start of an engine, which takes about two seconds.
	startTimeout = time.Minute
	// stopPatience is the time that an engine has to end by itself; it has no containers then.
	stopPatience = 30 * time.Second
	// stopTimeout bounds the whole clean-up.
	stopTimeout = time.Minute
	// logTail is the number of bytes of the engine's log that a failed test shows.
	logTail = 8 << 10
)

// engine is a dockerd of the test.
type engine struct {
	// dir has all files of the engine.
	dir string
	// ended is closed when the process has ended; exit has its error.
	ended chan struct{}
	exit  error
	// pid is the process id.
	pid int
	// pool is the range of the addresses of its networks.
	pool string
	// made has the paths outside dir that the engine creates, the deepest first.
	made []string
}

func (e *engine) socket() string { return filepath.Join(e.dir, "docker.sock") }
func (e *engine) log() string    { return filepath.Join(e.dir, "dockerd.log") }

// outside returns the paths that an engine creates whatever its flags are: its key, the folders of its plugins and of
// its containers' shims, and the parents of its containers' cgroups.
func outside() []string {
	paths := []string{"/etc/docker/key.json", "/etc/docker", "/run/docker/plugins", "/run/docker", "/run/containerd/s", "/run/containerd"}
	// cgroup v2 has it at the root, cgroup v1 at the root of each hierarchy.
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*")
	if err != nil {
		return paths
	}
	for _, hierarchy := range append(hierarchies, "/sys/fs/cgroup") {
		paths = append(paths, filepath.Join(hierarchy, "docker"))
	}
	return paths
}

// poolOf returns an address range that differs between parallel tests and from the ranges of an engine's defaults and
// of a node's pods. There are sixteen ranges; two engines with the same one have networks that are not reachable.
func poolOf(pid int) string { return fmt.Sprintf("10.213.%d.0/20", pid%16*16) }

// forward adds ("--insert") or removes ("--delete") the one rule that lets the engine's containers reach each other.
// Where another engine runs or ran, the filter drops everything that no rule of that engine accepts.
func (e *engine) forward(action string) error {
	if _, err := exec.LookPath("iptables"); err != nil {
		return nil
	}
	out, err := exec.Command("iptables", "--wait", action, "FORWARD", "--source", e.pool, "--destination", e.pool, "--jump", "ACCEPT").CombinedOutput()
	if err != nil {
		return fmt.Errorf("add or remove the rule for the containers at %s: %w: %s", e.pool, err, out)
	}
	return nil
}

func startEngine(t testing.TB) *engine {
	t.Helper()
	// Not t.TempDir: it would be removed while file systems are mounted in it, and its path is too long for sockets.
	dir, err := os.MkdirTemp("", "quartet-docker-")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{dir: dir, ended: make(chan struct{}), pool: poolOf(os.Getpid())}
	for _, path := range outside() {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			e.made = append(e.made, path)
		}
	}
	// An empty configuration: the machine's may contradict the flags, which ends an engine.
	config := filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(config, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(e.log())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("dockerd",
		"--config-file="+config, "--host=unix://"+e.socket(), "--pidfile="+filepath.Join(dir, "dockerd.pid"),
		"--data-root="+filepath.Join(dir, "data"), "--exec-root="+filepath.Join(dir, "exec"),
		"--log-level=warn", "--bridge=none", "--iptables=false", "--ip-masq=false", "--ip-forward=false",
		"--default-address-pool=base="+e.pool+",size=24")
	cmd.Stdout, cmd.Stderr = log, log
	// A test that is killed takes its engine along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := errors.Join(e.start(cmd), log.Close()); err != nil {
		t.Fatalf("dockerhost: starting dockerd: %v", err)
	}
	if err := e.forward("--insert"); err != nil {
		t.Errorf("dockerhost: %v", err)
	}
	return e
}

// start starts the process and waits for it in a goroutine that ends with it.
func (e *engine) start(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		// Pdeathsig refers to the thread that has started the process: the thread has to live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			e.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			e.exit = cmd.Wait()
			close(e.ended)
		}
	}()
	return <-started
}

// await waits until the engine answers, and fails the test when the process ends instead.
func (e *engine) await(t testing.TB, ask func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	eventually.In(ctx, t, "the engine at "+e.socket()+" answers", func() bool {
		select {
		case <-e.ended:
			t.Fatalf("dockerhost: dockerd has ended: %v\n%s", e.exit, e.tail())
		default:
		}
		return ask() == nil
	})
}

func (e *engine) tail() string {
	log, err := os.ReadFile(e.log())
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-logTail):])
}

// stop ends the engine and removes all its files. It reports errors and continues.
func (e *engine) stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := process.End(ctx, e.pid, stopPatience)
	if err == nil {
		<-e.ended
	}
	// Its containerd ends with it unless dockerd was killed.
	if pid := e.containerd(); pid != 0 {
		err = errors.Join(err, process.End(ctx, pid, stopPatience))
	}
	if t.Failed() {
		t.Logf("dockerhost: the end of dockerd's log:\n%s", e.tail())
	}
	err = errors.Join(err, e.forward("--delete"), unmountBelow(e.dir), os.RemoveAll(e.dir))
	for _, path := range e.made {
		// A directory that is not empty is used by another engine.
		if rmErr := os.Remove(path); rmErr != nil && !errors.Is(rmErr, os.ErrNotExist) && !errors.Is(rmErr, unix.ENOTEMPTY) &&
			!errors.Is(rmErr, unix.EBUSY) {
			err = errors.Join(err, rmErr)
		}
	}
	if err != nil {
		t.Errorf("dockerhost: %v", err)
	}
}

// containerd is the process id of the engine's containerd; 0 when it has ended.
func (e *engine) containerd() int {
	content, err := os.ReadFile(filepath.Join(e.dir, "exec", "containerd", "containerd.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || unix.Kill(pid, 0) != nil {
		return 0
	}
	return pid
}

// unmountBelow unmounts every mount at or below a directory, the last one first.
func unmountBelow(dir string) error {
	content, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var errs []error
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		if len(fields) < 2 || (fields[1] != dir && !strings.HasPrefix(fields[1], dir+"/")) {
			continue
		}
		if err := unix.Unmount(fields[1], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", fields[1], err))
		}
	}
	return errors.Join(errs...)
}

// removeEverything removes all containers, networks and volumes of an engine of the test: their mounts and interfaces
// would outlive it.
func (h *Host) removeEverything(t testing.TB) {
	t.Helper()
	ids, err := h.TryDocker("ps", "--all", "--quiet")
	if err == nil && strings.TrimSpace(ids) != "" {
		_, err = h.TryDocker(append([]string{"rm", "--force", "--volumes"}, strings.Fields(ids)...)...)
	}
	if err == nil {
		_, err = h.TryDocker("network", "prune", "--force")
	}
	if err != nil {
		t.Errorf("dockerhost: %v", err)
	}
}
