package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// earliestKill and latestKill are the bounds of the time between two kills.
	earliestKill = 5 * time.Second
	latestKill   = 20 * time.Second
	// killTime is the format of the times in the log of kills.
	killTime = time.RFC3339Nano
)

// killAtRandom kills a random one of the four processes every few seconds, until the context ends.
func killAtRandom(ctx context.Context, services []string, log io.Writer) {
	timer := time.NewTimer(pause())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(pause())
		victim := services[rand.IntN(len(services))]
		for _, pid := range processesOf(victim) {
			err := syscall.Kill(pid, syscall.SIGKILL)
			fmt.Fprintf(log, "%s killed %s, pid %d: %v\n", time.Now().Format(killTime), victim, pid, err)
		}
	}
}

func pause() time.Duration {
	return earliestKill + rand.N(latestKill-earliestKill)
}

// processesOf returns the ids of the processes of a program in this PID namespace.
func processesOf(program string) []int {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	var pids []int
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		first, _, _ := bytes.Cut(content, []byte{0})
		pid, err := strconv.Atoi(strings.Split(file, "/")[2])
		if err == nil && filepath.Base(string(first)) == program {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
