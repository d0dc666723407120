package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/quartet-node/quartet/internal/layout"
)

// clockTicks is USER_HZ, the unit of processor time in /proc. Linux fixes it at 100 for user space.
const clockTicks = 100

// measureIdle starts pods, waits until the node is idle, and measures the resources of the four processes over a while.
func measureIdle(ctx context.Context, n *node, pods int, length time.Duration) (Idle, error) {
	fmt.Printf("%3d pods, idle for %v…\n", pods, length)
	if _, err := n.startPods(ctx, pods); err != nil {
		return Idle{}, err
	}
	if err := rest(ctx, length/3); err != nil {
		return Idle{}, err
	}
	before := map[string]int{}
	pids := map[string]int{}
	for _, service := range layout.Services() {
		name := string(service)
		pid, err := n.PID(name)
		if err != nil {
			return Idle{}, err
		}
		pids[name] = pid
		if before[name], err = processorTicks(pid); err != nil {
			return Idle{}, err
		}
	}
	begin := time.Now()
	if err := rest(ctx, length); err != nil {
		return Idle{}, err
	}
	idle := Idle{Pods: pods, Seconds: time.Since(begin).Seconds()}
	for _, service := range layout.Services() {
		name := string(service)
		after, err := processorTicks(pids[name])
		if err != nil {
			return Idle{}, err
		}
		p := Process{Name: name, CPUPercent: 100 * float64(after-before[name]) / clockTicks / idle.Seconds}
		if p.RSSBytes, p.PSSBytes, err = memory(pids[name]); err != nil {
			return Idle{}, err
		}
		idle.Processes = append(idle.Processes, p)
		idle.RSSBytes += p.RSSBytes
		idle.PSSBytes += p.PSSBytes
		idle.CPUPercent += p.CPUPercent
	}
	return idle, n.stopPods(ctx, pods)
}

func rest(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(length):
		return nil
	}
}

// processorTicks returns the processor time of a process in clockTicks: the fields utime and stime of proc_pid_stat(5).
func processorTicks(pid int) (int, error) {
	const utime, stime = 11, 12
	return statTicks(pid, utime, stime)
}

// endedTicks returns the processor time of the ended children of a process in clockTicks: the fields cutime and cstime.
func endedTicks(pid int) (int, error) {
	const cutime, cstime = 13, 14
	return statTicks(pid, cutime, cstime)
}

// statTicks returns the sum of two fields of proc_pid_stat(5), counted from the field state.
func statTicks(pid, first, second int) (int, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if !found || len(fields) <= second {
		return 0, fmt.Errorf("%s: not the format of proc_pid_stat(5)", path)
	}
	one, err := strconv.Atoi(fields[first])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	other, err := strconv.Atoi(fields[second])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return one + other, nil
}

// memory returns the resident and the proportional set size of a process, in bytes.
func memory(pid int) (rss, pss int64, err error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	file, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer file.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kibi, err := strconv.ParseInt(fields[1], 10, 64)
		switch {
		case err != nil:
			continue
		case fields[0] == "Rss:":
			rss = kibi << 10
		case fields[0] == "Pss:":
			pss = kibi << 10
		}
	}
	if err := lines.Err(); err != nil {
		return 0, 0, fmt.Errorf("%s: %w", path, err)
	}
	return rss, pss, nil
}
