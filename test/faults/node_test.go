// Package faults drives a whole node on a real runtime behind a proxy that makes single calls fail, hang or lose their
// answer (package criproxy). It also places pods that cannot run. All tests share one node; each has pods of its own,
// removes them, and checks that nothing is left of them.
package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/process"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/criproxy"
	"github.com/quartet-node/quartet/test/livenode"
)

const (
	// patience is the time limit of a wait on a busy machine. An idle one needs seconds.
	patience = 3 * time.Minute
	interval = 50 * time.Millisecond
	// startPatience bounds the node's start and its end.
	startPatience = 2 * time.Minute
	// requestTimeout is the timeout of a hanging call: long enough to see that other pods do not wait for it, short enough
	// to see the recovery.
	requestTimeout = time.Minute
	// plegTimeout is the longest timeout of pleg's calls.
	plegTimeout = 30 * time.Second
	// logsMiB is the size of the file system for the pods' logs, and logsFiles its number of inodes. Tests fill it.
	logsMiB   = 4
	logsFiles = 2000
	nodeName  = "node"
)

// node is shared by all tests.
var node *faultyNode

// faultyNode is a node on a runtime with injected faults.
type faultyNode struct {
	*livenode.Node
	bundle *bundle.Bundle
	proxy  *criproxy.Proxy
	// runtime and images are clients of the runtime without the proxy.
	runtime runtimeapi.RuntimeServiceClient
	images  runtimeapi.ImageServiceClient
	engine  enginev1.EngineServiceClient
	conns   []*grpc.ClientConn
	pid     int
	// noLogsMount is the reason why the pods' logs have no file system of their own; nil when they have one.
	noLogsMount error
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if reason := livenode.CannotRun(livenode.Bin()); reason != nil {
		if os.Getenv("CI") == "true" {
			fmt.Fprintln(os.Stderr, "faults:", reason)
			return 1
		}
		fmt.Println("tests of faults are skipped:", reason)
		return 0
	}
	// The tests often wait, so more of them run in parallel than the default, which is the number of processors. With
	// three times as many, a start on two busy processors takes longer than the node waits for the runtime.
	flag.Parse()
	if err := flag.Set("test.parallel", "20"); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	err := start(ctx)
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults: start the node:", err)
	} else {
		code = m.Run()
	}
	if code != 0 {
		printLogs()
	}
	ending, cancelEnding := context.WithTimeout(context.Background(), startPatience)
	defer cancelEnding()
	if err := stop(ending); err != nil {
		fmt.Fprintln(os.Stderr, "faults: stop the node:", err)
		return 1
	}
	return code
}

// start starts a runtime, a proxy in front of it and a node on the proxy.
func start(ctx context.Context) error {
	live, err := livenode.New(livenode.Bin(), "faults")
	if err != nil {
		return err
	}
	l := live.Layout
	node = &faultyNode{Node: live, bundle: bundle.New(bundle.Config{Layout: l, BinDir: livenode.Bin(),
		Note: func(note string) { fmt.Println(note) }})}
	for _, dir := range []string{l.Manifests(), l.PodLogs(), l.Logs(), l.PIDDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := errors.Join(node.bundle.Prepare(), node.bundle.Start(ctx), node.bundle.ImportImages(ctx)); err != nil {
		return err
	}
	node.noLogsMount = unix.Mount("quartet-faults", l.PodLogs(), "tmpfs", 0, fmt.Sprintf("size=%dm,nr_inodes=%d", logsMiB, logsFiles))
	if node.proxy, err = criproxy.Start(l.RuntimeEndpoint(), filepath.Join(l.SocketDir(), "proxy.sock")); err != nil {
		return err
	}
	if err := node.dial(); err != nil {
		return err
	}
	return node.startServices(ctx)
}

// dial connects the tests' own clients.
func (n *faultyNode) dial() error {
	runtime, err := grpc.NewClient(n.Layout.RuntimeEndpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	engine, err := rpc.Dial(n.Layout.Address(layout.SyncLoop))
	if err != nil {
		return errors.Join(err, runtime.Close())
	}
	n.conns = []*grpc.ClientConn{runtime, engine}
	n.runtime, n.images = runtimeapi.NewRuntimeServiceClient(runtime), runtimeapi.NewImageServiceClient(runtime)
	n.engine = enginev1.NewEngineServiceClient(engine)
	return nil
}

// startServices starts the four services and waits until the node answers.
func (n *faultyNode) startServices(ctx context.Context) error {
	config := fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: %q
containerRuntimeEndpoint: %q
podLogsDir: %q
cgroupRoot: %q
address: 127.0.0.1
readOnlyPort: %s
healthzPort: 0
syncFrequency: 2s
runtimeRequestTimeout: %s
serializeImagePulls: false
%s`, n.Layout.Manifests(), n.proxy.Endpoint(), n.Layout.PodLogs(), n.Layout.CgroupRoot(), n.Port(), requestTimeout, livenode.AnyMachine)
	if err := os.WriteFile(n.Layout.ConfigFile(), []byte(config), 0o600); err != nil {
		return err
	}
	log, err := os.Create(n.Layout.NodeLog())
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(livenode.Bin(), "quartet"), "node", "--config", n.Layout.ConfigFile(),
		"--state-dir", n.Layout.StateDir(), "--hostname-override", nodeName)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := errors.Join(cmd.Start(), log.Close()); err != nil {
		return err
	}
	n.pid = cmd.Process.Pid
	go func() { _ = cmd.Wait() }() // its log has the reason of its end
	for !n.healthy(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the node does not answer: %w", ctx.Err())
		case <-time.After(interval):
		}
	}
	return nil
}

func (n *faultyNode) healthy(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+n.Port()+"/healthz", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close()) == nil && resp.StatusCode == http.StatusOK
}

// stop ends all processes and removes their files.
func stop(ctx context.Context) error {
	if node == nil {
		return nil
	}
	var errs []error
	if node.pid != 0 {
		errs = append(errs, process.End(ctx, node.pid, 20*time.Second))
	}
	for _, conn := range node.conns {
		errs = append(errs, conn.Close())
	}
	if node.proxy != nil {
		errs = append(errs, node.proxy.Close())
	}
	if node.bundle.PID() != 0 {
		errs = append(errs, node.bundle.RemovePods(ctx, 0))
	}
	errs = append(errs, node.bundle.Stop(ctx), node.bundle.CleanUp()) // this also unmounts the file system of the logs
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\nthe state directory %s is kept", err, node.Layout.StateDir())
	}
	return os.RemoveAll(node.Layout.StateDir())
}

func printLogs() {
	if node == nil {
		return
	}
	for _, file := range []string{node.Layout.NodeLog(), node.bundle.LogFile()} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		const tail = 60_000
		fmt.Fprintf(os.Stderr, "---- %s\n%s\n", file, data[max(0, len(data)-tail):])
	}
}
