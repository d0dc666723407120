package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/procfs"

	"github.com/quartet-node/quartet/test/figures"
)

// clockTicks is USER_HZ, the unit of processor time in /proc. Linux fixes it at 100 for user space.
const clockTicks = 100

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
	stat, err := statOf(pid)
	return int(stat.UTime + stat.STime), err
}

// endedTicks returns the processor time of the ended children of a process in clockTicks: the fields cutime and cstime.
func endedTicks(pid int) (int, error) {
	stat, err := statOf(pid)
	return stat.CUTime + stat.CSTime, err
}

func statOf(pid int) (procfs.ProcStat, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return process.Stat()
}

// memoryOf returns the memory of a process and its running descendants.
func memoryOf(root int) (m figures.Memory, err error) {
	pids, err := tree(root)
	if err != nil {
		return m, err
	}
	for _, pid := range pids {
		process, err := procfs.NewProc(pid)
		if err != nil {
			return m, err
		}
		rollup, err := process.ProcSMapsRollup()
		if err != nil {
			return m, fmt.Errorf("read the memory of process %d: %w", pid, err)
		}
		m.RSS += rollup.Rss
		m.PSS += rollup.Pss
		m.Anonymous += rollup.Anonymous
	}
	return m, nil
}

// machineSeconds are the seconds in which the processors of the machine worked and were idle, since its boot.
type machineSeconds struct{ busy, idle float64 }

func machine() (machineSeconds, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return machineSeconds{}, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return machineSeconds{}, err
	}
	all := stat.CPUTotal
	return machineSeconds{
		busy: all.User + all.Nice + all.System + all.IRQ + all.SoftIRQ,
		idle: all.Idle + all.Iowait,
	}, nil
}
