package podcgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

const (
	// killPatience is the time limit for the end of processes after SIGKILL. Only processes that wait for a device take
	// longer.
	killPatience = 2 * time.Second
	// killInterval is the time between two checks.
	killInterval = 10 * time.Millisecond
)

// end kills the processes in cgroups and below them, and waits until all have ended.
func (m *Machine) end(ctx context.Context, dirs []string) error {
	timer := m.clock.NewTimer(killPatience)
	defer timer.Stop()
	ticker := m.clock.NewTicker(killInterval)
	defer ticker.Stop()
	for {
		running, err := processes(dirs)
		if err != nil || len(running) == 0 {
			return err
		}
		if err := kill(dirs, running); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
			return fmt.Errorf("processes %v were killed and have not ended after %v", running, killPatience)
		case <-ticker.C():
		}
	}
}

// processes returns the processes in cgroups and below them.
func processes(dirs []string) ([]int, error) {
	var all []int
	for _, dir := range dirs {
		// A cgroup that is being removed has none.
		if pids, err := cgroups.GetAllPids(dir); err == nil {
			all = append(all, pids...)
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return nil, fmt.Errorf("list its processes: %w", err)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// kill sends SIGKILL to all processes in cgroups. If the kernel supports cgroup.kill, it does it. In addition each
// process is opened as a pidfd, and killed only if it is still in the cgroup after that, so that no other process with
// a reused PID is killed.
func kill(dirs []string, running []int) error {
	killed := false
	for _, dir := range dirs {
		// cgroup.kill exists in cgroup v2 from Linux 5.14 on. Of several hierarchies only one is v2, and it may not contain
		// all processes.
		if file, err := cgroups.OpenFile(dir, "cgroup.kill", os.O_WRONLY); err == nil {
			_, err := file.WriteString("1")
			killed = errors.Join(err, file.Close()) == nil || killed
		}
	}
	held := make(map[int]int, len(running))
	defer func() {
		for _, fd := range held {
			_ = unix.Close(fd) // nothing was written to it
		}
	}()
	for _, pid := range running {
		if pid <= 0 && killed {
			continue
		}
		if pid <= 0 {
			return errors.New("it contains processes of another PID namespace, and this kernel has no cgroup.kill: end them on the machine")
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			held[pid] = fd
		} else if !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("open process %d: %w", pid, err)
		}
	}
	still, err := processes(dirs)
	if err != nil {
		return err
	}
	for _, pid := range still {
		fd, ok := held[pid]
		if !ok {
			continue // the next check finds it
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}
