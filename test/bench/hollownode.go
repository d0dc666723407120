package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/sharedmount"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/fakecri"
)

const (
	// hollowImage is the image of the pods. It has no content.
	hollowImage = "quartet.local/hollow:1"
	// hollowStop is the time limit for the end of a node's processes.
	hollowStop = 20 * time.Second
)

// hollowConfig is the configuration of a node without real containers: it has no cgroups and no ports, and a place for
// each pod of a benchmark.
const hollowConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %s
cgroupsPerQOS: false
enforceNodeAllocatable: [none]
enableServer: false
readOnlyPort: 0
healthzPort: 0
imageGCHighThresholdPercent: 100
failSwapOn: false
makeIPTablesUtilChains: false
maxPods: 1000
`

// hollowNode is a whole node with its four processes, on a runtime that runs no containers and only keeps them in
// memory.
type hollowNode struct {
	name    string
	layout  layout.Layout
	runtime *fakecri.Server
	cmd     *exec.Cmd
	log     *os.File
}

// startHollow starts a node as "quartet node" and does not wait for it.
func startHollow(c *cluster.Cluster, bin, dir, name string) (n *hollowNode, err error) {
	l, err := layout.New(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	n = &hollowNode{name: name, layout: l}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start the hollow node %s: %w", name, err), n.stop())
		}
	}()
	if err := os.MkdirAll(l.StateDir(), 0o700); err != nil {
		return n, err
	}
	if n.runtime, err = fakecri.Serve(filepath.Join(l.StateDir(), "cri.sock")); err != nil {
		return n, err
	}
	n.runtime.AddImage(hollowImage, 1<<20)
	config, kubeconfig := filepath.Join(l.StateDir(), "config.yaml"), filepath.Join(l.StateDir(), "kubeconfig")
	if err := os.WriteFile(config, fmt.Appendf(nil, hollowConfig, n.runtime.Endpoint()), 0o600); err != nil {
		return n, err
	}
	if err := c.SaveKubeconfig(kubeconfig, cluster.NodeUser(name), cluster.Nodes); err != nil {
		return n, err
	}
	if n.log, err = os.Create(filepath.Join(l.StateDir(), "node.log")); err != nil {
		return n, err
	}
	n.cmd = exec.Command(filepath.Join(bin, "quartet"), "node", "--config", config, "--kubeconfig", kubeconfig,
		"--state-dir", l.StateDir(), "--hostname-override", name, "--node-ip", "127.0.0.1")
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if err := n.cmd.Start(); err != nil {
		n.cmd = nil
		return n, err
	}
	return n, nil
}

// stop ends the node's processes and its runtime. Its directory stays.
func (n *hollowNode) stop() error {
	var errs []error
	if n.cmd != nil {
		errs = append(errs, n.cmd.Process.Signal(syscall.SIGTERM))
		kill := time.AfterFunc(hollowStop, func() { _ = n.cmd.Process.Kill() })
		if err := n.cmd.Wait(); err != nil {
			var ended *exec.ExitError
			if !errors.As(err, &ended) {
				errs = append(errs, err)
			}
		}
		kill.Stop()
	}
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	if n.runtime != nil {
		n.runtime.Stop()
	}
	// syncloop makes it a mount, which stays for the next one.
	errs = append(errs, sharedmount.Undo(n.layout.Root()))
	return errors.Join(errs...)
}

// used returns the resources of the four processes: their proportional set size in bytes, and their processor time in
// clockTicks.
func (n *hollowNode) used() (memoryBytes int64, ticks int, err error) {
	for _, service := range layout.Services() {
		text, err := os.ReadFile(n.layout.PIDFile(string(service)))
		if err != nil {
			return 0, 0, err
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return 0, 0, err
		}
		m, err := memoryOf(pid)
		if err != nil {
			return 0, 0, err
		}
		used, err := processorTicks(pid)
		if err != nil {
			return 0, 0, err
		}
		memoryBytes, ticks = memoryBytes+int64(m.PSS), ticks+used
	}
	return memoryBytes, ticks, nil
}

// usedByAll returns the sum of the resources of the nodes.
func usedByAll(nodes []*hollowNode) (memoryBytes int64, ticks int, err error) {
	for _, n := range nodes {
		m, t, err := n.used()
		if err != nil {
			return 0, 0, fmt.Errorf("the hollow node %s: %w", n.name, err)
		}
		memoryBytes, ticks = memoryBytes+m, ticks+t
	}
	return memoryBytes, ticks, nil
}

// await polls until done returns true. Its limit is long enough for a machine with few cores that starts many nodes.
func await(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, hollowPatience)
	defer cancel()
	var last error
	for {
		ok, err := done(ctx)
		if ok {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		if rest(ctx, pollHollow) != nil {
			return fmt.Errorf("gave up waiting until %s: %w", what, errors.Join(ctx.Err(), last))
		}
	}
}
