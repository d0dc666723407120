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
	// killPatience is how long processes may take to be gone after SIGKILL: longer only those take that wait for a device.
	killPatience = 2 * time.Second
	// killInterval is the time between two looks.
	killInterval = 10 * time.Millisecond
)

// end kills what runs in cgroups and below them, and waits until nothing does.
func (m *Machine) end(ctx context.Context, dirs []string) error {
	patience := m.clock.NewTimer(killPatience)
	defer patience.Stop()
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
		case <-patience.C():
			return fmt.Errorf("processes %v were killed and have not ended after %v", running, killPatience)
		case <-ticker.C():
		}
	}
}

// processes are those in cgroups and below them.
func processes(dirs []string) ([]int, error) {
	var all []int
	for _, dir := range dirs {
		// One that goes away meanwhile has nothing.
		if pids, err := cgroups.GetAllPids(dir); err == nil {
			all = append(all, pids...)
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return nil, fmt.Errorf("list what runs in it: %w", err)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// kill sends SIGKILL to everything in cgroups. The kernel does it by itself where it can; else each process is held
// first and then looked for again, so that none is killed that has got the number of another.
func kill(dirs []string, running []int) error {
	asked := false
	for _, dir := range dirs {
		// Cgroup v2 has it, from Linux 5.14 on. Of several hierarchies only one has, and it need not have all processes.
		if file, err := cgroups.OpenFile(dir, "cgroup.kill", os.O_WRONLY); err == nil {
			_, err := file.WriteString("1")
			asked = errors.Join(err, file.Close()) == nil || asked
		}
	}
	held := make(map[int]int, len(running))
	defer func() {
		for _, fd := range held {
			_ = unix.Close(fd) // nothing is written to it
		}
	}()
	for _, pid := range running {
		if pid <= 0 && asked {
			continue
		}
		if pid <= 0 {
			return errors.New("what runs in it is of another PID namespace, and this kernel kills no cgroups: end it on the machine")
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			held[pid] = fd
		} else if !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("hold process %d: %w", pid, err)
		}
	}
	still, err := processes(dirs)
	if err != nil {
		return err
	}
	for _, pid := range still {
		fd, ok := held[pid]
		if !ok {
			continue // the next look finds it
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}
