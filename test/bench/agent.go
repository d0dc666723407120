package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/quartet-node/quartet/test/isolated"
)

const (
	// agentStop is the time limit of a node's end.
	agentStop = 20 * time.Second
	// settleTime is the time between the start of a node and the measurement.
	settleTime = 3 * time.Second
	// roundTimeout is far above the duration of any round.
	roundTimeout = 5 * time.Minute
	// pollStop is the interval of what is waited for and not measured.
	pollStop = 100 * time.Millisecond
)

// kubeletDir is the root directory of both nodes, which the isolated environment has for itself.
const kubeletDir = "/var/lib/kubelet"

// agent is a running node: the kubelet, or Quartet in its place.
type agent struct {
	name string
	cmd  *exec.Cmd
	log  *os.File
}

// startAgent starts a program as the kubelet of a node, with a configuration and further flags.
func (r *rig) startAgent(name, program, config string, flags ...string) (a *agent, err error) {
	dir := filepath.Join(r.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, command := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "kubelet")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	if err := os.Symlink(program, command); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	a = &agent{name: name}
	if a.log, err = os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	flags = append([]string{
		"--config=" + file, "--root-dir=" + kubeletDir, "--hostname-override=" + name,
		// Without an address a kubelet asks for that of the name, and waits for 10 s where no server answers.
		"--node-ip=" + isolated.Address,
	}, flags...)
	a.cmd = exec.Command(command, flags...)
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

// kill kills every process of the node at once.
func (a *agent) kill() error {
	pids, err := tree(a.cmd.Process.Pid)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill a process of %s: %w", a.name, err)
		}
	}
	_ = a.cmd.Wait() // it was killed
	return a.log.Close()
}

// cpu returns the seconds of processor time of all processes of the node, with those that have ended.
func (a *agent) cpu() (float64, error) { return treeSeconds(a.cmd.Process.Pid) }

// tree returns a process and its running descendants, parents first.
func tree(root int) ([]int, error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, p := range processes {
		if stat, err := p.Stat(); err == nil { // it may have just ended
			children[stat.PPID] = append(children[stat.PPID], p.PID)
		}
	}
	pids := []int{root}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children[pids[i]]...)
	}
	return pids, nil
}

// treeSeconds returns the processor time of a process, its ended children and its running descendants, in seconds.
func treeSeconds(root int) (float64, error) {
	pids, err := tree(root)
	if err != nil {
		return 0, err
	}
	ticks := 0
	for _, pid := range pids {
		own, err := processorTicks(pid)
		if err != nil {
			return 0, fmt.Errorf("a process of the node has ended: %w", err)
		}
		ended, err := endedTicks(pid)
		if err != nil {
			return 0, fmt.Errorf("a process of the node has ended: %w", err)
		}
		ticks += own + ended
	}
	return float64(ticks) / clockTicks, nil
}

// poll calls done until it returns true. Its error includes that of the last call.
func poll(ctx context.Context, interval time.Duration, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		ok, err := done(ctx)
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}
