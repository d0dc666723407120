package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/livenode"
)

// The names of the two nodes.
const (
	nodeKubelet = "kubelet"
	nodeQuartet = "quartet"
)

const (
	// agentStop is the time limit of a node's end.
	agentStop = 20 * time.Second
	// settleTime is the time between the start of a node and the measurement.
	settleTime = 3 * time.Second
)

// agentConfig and livenode.AnyMachine are the configuration of both nodes: the defaults, except what this environment
// requires.
const agentConfig = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %s
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
enableServer: false
healthzPort: 0
maxPods: %d
`

// agent is a running node: the kubelet, or Quartet in its place.
type agent struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
}

// startAgent starts a program as the kubelet of a node.
func (r *volumeRig) startAgent(name, program string) (a *agent, err error) {
	dir := filepath.Join(r.opts.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	config, kubeconfig, command := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "kubelet")
	const defaultMaxPods, spare = 110, 10
	maxPods := max(defaultMaxPods, r.opts.Pods+spare)
	text := fmt.Appendf([]byte(livenode.AnyMachine), agentConfig, r.layout.RuntimeEndpoint(), maxPods)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return nil, err
	}
	if err := r.cluster.SaveKubeconfig(kubeconfig, cluster.NodeUser(name), cluster.Nodes); err != nil {
		return nil, err
	}
	if err := os.Symlink(program, command); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	a = &agent{name: name}
	if a.log, err = os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	a.cmd = exec.Command(command, "--config="+config, "--kubeconfig="+kubeconfig, "--root-dir="+kubeletDir, "--hostname-override="+name)
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	if err := a.cmd.Start(); err != nil {
		return nil, errors.Join(err, a.log.Close())
	}
	return a, nil
}

// stop ends the node.
func (a *agent) stop() error {
	err := a.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(agentStop, func() { _ = a.cmd.Process.Kill() })
	_ = a.cmd.Wait() // both are ended by a signal
	if !kill.Stop() {
		err = errors.Join(err, fmt.Errorf("%s has not ended %v after SIGTERM", a.name, agentStop))
	}
	return errors.Join(err, a.log.Close())
}

// cpu returns the seconds of processor time of all processes of the node, with those that have ended.
func (a *agent) cpu() (float64, error) {
	ticks, err := treeTicks(a.cmd.Process.Pid)
	return float64(ticks) / clockTicks, err
}

// treeTicks returns the processor time of a process, its ended children and its running descendants, in clockTicks.
func treeTicks(root int) (int, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	children := map[int][]int{}
	for _, p := range processes {
		if stat, err := p.Stat(); err == nil { // it may have just ended
			children[stat.PPID] = append(children[stat.PPID], p.PID)
		}
	}
	ticks := 0
	for tree := []int{root}; len(tree) > 0; tree = tree[1:] {
		own, err := processorTicks(tree[0])
		if err != nil {
			return 0, fmt.Errorf("a process of the node has ended: %w", err)
		}
		ended, err := endedTicks(tree[0])
		if err != nil {
			return 0, fmt.Errorf("a process of the node has ended: %w", err)
		}
		ticks += own + ended
		tree = append(tree, children[tree[0]]...)
	}
	return ticks, nil
}

// untilNodeReady waits until the API server has the Node Ready.
func (r *volumeRig) untilNodeReady(ctx context.Context, name string) error {
	// The condition of an earlier process counts only once it was sent again.
	begin := metav1.Now()
	err := poll(ctx, pollStop, func(ctx context.Context) (bool, error) {
		node, err := r.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue && !c.LastHeartbeatTime.Before(&begin)
		}), nil
	})
	if err != nil {
		return fmt.Errorf("the Node is not Ready: %w", err)
	}
	return nil
}

// untilRegistered waits until the CSINode of a node has the drivers.
func (r *volumeRig) untilRegistered(ctx context.Context, name string) error {
	err := poll(ctx, pollStop, func(ctx context.Context) (bool, error) {
		node, err := r.admin.StorageV1().CSINodes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(node.Spec.Drivers) == len(r.drivers), err
	})
	if err != nil {
		return fmt.Errorf("not all drivers are registered: %w", err)
	}
	return nil
}
