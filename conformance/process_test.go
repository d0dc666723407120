package conformance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/quartet-node/quartet/conformance"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/sharedmount"
	"github.com/quartet-node/quartet/services/configmux"
	"github.com/quartet-node/quartet/services/nodestatus"
	"github.com/quartet-node/quartet/services/pleg"
	"github.com/quartet-node/quartet/services/syncloop"
	"github.com/quartet-node/quartet/test/harness"
)

// asService is the environment variable that makes a process of this binary a service, which a test can kill.
const asService = "QUARTET_TEST_AS_SERVICE"

func TestMain(m *testing.M) {
	if service := os.Getenv(asService); service != "" {
		map[string]func(){
			"configmux": configmux.Main, "pleg": pleg.Main, "syncloop": syncloop.Main, "nodestatus": nodestatus.Main,
		}[service]()
		return
	}
	goleak.VerifyTestMain(m)
}

// process is a part as a process of its own.
type process struct {
	program string
	args    []string
	env     []string
	log     bytes.Buffer

	mu  sync.Mutex
	cmd *exec.Cmd
}

// startProcess starts a service of this repository until the test ends.
func startProcess(t *testing.T, service string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return untilTheEnd(t, &process{program: self, args: args, env: append(os.Environ(), asService+"="+service)})
}

// startProgram starts a program until the test ends.
func startProgram(t *testing.T, program string, args ...string) *process {
	t.Helper()
	return untilTheEnd(t, &process{program: program, args: args})
}

func untilTheEnd(t *testing.T, p *process) *process {
	t.Helper()
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the log of %s:\n%s", p.program, p.log.String())
		}
	})
	return p
}

func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd = exec.Command(p.program, p.args...)
	p.cmd.Env = p.env
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	return p.cmd.Start()
}

func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Kill() // it may have ended
	_ = p.cmd.Wait()         // the error is that it was killed
}

func (p *process) restart(context.Context) error {
	p.kill()
	return p.start()
}

// connect returns a connection until the test ends.
func connect(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil && !errors.Is(err, grpc.ErrClientConnClosing) { //nolint:staticcheck // no other
			t.Error(err)
		}
	})
	return conn
}

// serveRuntime serves a runtime until the test ends.
func serveRuntime(t *testing.T, dir string) *conformance.Runtime {
	t.Helper()
	runtime, err := conformance.ServeRuntime(filepath.Join(dir, "cri.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Close)
	return runtime
}

// ownPLEG returns this repository's pleg as a part, with its runtime.
func ownPLEG(t *testing.T) conformance.Part {
	t.Helper()
	dir := harness.ShortDir(t)
	runtime := serveRuntime(t, dir)
	address := "unix://" + filepath.Join(dir, "pleg.sock")
	p := startProcess(t, "pleg", "--listen="+address, "--metrics-listen=unix://"+filepath.Join(dir, "metrics.sock"),
		"--state-dir="+dir, "--container-runtime-endpoint="+runtime.Endpoint())
	return conformance.Part{Conn: connect(t, address), Runtime: runtime, Restart: p.restart}
}

// nodeDir is the directory of a node's processes in a test.
type nodeDir struct {
	t       *testing.T
	dir     string
	runtime *conformance.Runtime
}

// newNodeDir returns a directory with the configuration of a node without a network and a runtime of its own.
func newNodeDir(t *testing.T) nodeDir {
	t.Helper()
	n := nodeDir{t: t, dir: harness.ShortDir(t)}
	t.Cleanup(func() {
		// The mount exists if the machine's mounts are private.
		if err := sharedmount.Undo(n.rootDir()); err != nil {
			t.Error(err)
		}
	})
	n.runtime = serveRuntime(t, n.dir)
	manifests := filepath.Join(n.dir, "manifests")
	if err := os.Mkdir(manifests, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %s
podLogsDir: %s
staticPodPath: %s
cgroupsPerQOS: false
failSwapOn: false
makeIPTablesUtilChains: false
healthzPort: 0
enableServer: false
`, n.runtime.Endpoint(), filepath.Join(n.dir, "logs"), manifests)
	if err := os.WriteFile(filepath.Join(n.dir, "kubelet.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n nodeDir) rootDir() string { return filepath.Join(n.dir, "root") }

func (n nodeDir) address(service string) string {
	return "unix://" + filepath.Join(n.dir, service+".sock")
}

// start starts a service and returns it as a part.
func (n nodeDir) start(service string, flags ...string) conformance.Part {
	n.t.Helper()
	args := []string{
		"--config=" + filepath.Join(n.dir, "kubelet.yaml"), "--state-dir=" + n.dir, "--hostname-override=node",
		"--listen=" + n.address(service), "--metrics-listen=" + n.address(service+"-metrics"),
	}
	p := startProcess(n.t, service, append(args, flags...)...)
	return conformance.Part{Conn: connect(n.t, n.address(service)), Restart: p.restart, AllowChanges: true}
}
