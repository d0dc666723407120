package machine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/pidlimit"
)

const (
	// minOpenFiles is above the 4096 that a machine without systemd gives every process. A containerd with the kubelet's
	// 110 pods needs several files for each container.
	minOpenFiles = 8192
	// minInstances and minWatches are the kernel's own defaults; minThreads is the lowest default of pid_max.
	minInstances, minWatches, minThreads = 128, 8192, 32768
	// fullPercent is the percentage from which a limit counts as exhausted, because the next containers would fail.
	fullPercent = 80
)

// OpenFiles checks the limit of open files per process.
func (m Machine) OpenFiles() Finding {
	f := Finding{Check: "open files"}
	limit, err := m.OpenFilesLimit()
	if err != nil {
		return Unknown(f.Check, err)
	}
	f.Detail = fmt.Sprintf("%d for each process", limit)
	if limit == math.MaxUint64 {
		f.Detail = "no limit"
	}
	if limit < minOpenFiles {
		return f.With(Warning, f.Detail+": too few for a runtime with many containers",
			"ulimit -Hn 1048576 before quartet up, or LimitNOFILE=1048576 in the unit")
	}
	return f
}

// Inotify checks that inotify instances and watches are left. configmux, runtimes and many programs in containers use
// them, and all processes of root share one limit.
func (m Machine) Inotify(processes []Process) Finding {
	f := Finding{Check: "inotify"}
	instances, err := m.number("proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		return Unknown(f.Check, err)
	}
	watches, err := m.number("proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return Unknown(f.Check, err)
	}
	var usedInstances, usedWatches int64
	for _, p := range processes {
		if p.UID == 0 {
			usedInstances += p.Inotify
			usedWatches += p.Watches
		}
	}
	f.Detail = fmt.Sprintf(
		"root has %d of %d instances and %d of %d watches",
		usedInstances,
		instances,
		usedWatches,
		watches,
	)
	if instances < minInstances || isFull(usedInstances, instances) {
		return f.With(
			Warning,
			f.Detail+": too few instances are left",
			sysctl("fs.inotify.max_user_instances", max(512, 4*usedInstances)),
		)
	}
	if watches < minWatches || isFull(usedWatches, watches) {
		return f.With(
			Warning,
			f.Detail+": too few watches are left",
			sysctl("fs.inotify.max_user_watches", max(524288, 4*usedWatches)),
		)
	}
	return f
}

// sysctl returns the advice to change a kernel setting, now and permanently.
func sysctl(name string, value int64) string {
	return fmt.Sprintf("sysctl -w %[1]s=%[2]d, and the line %[1]s = %[2]d in /etc/sysctl.d/quartet.conf", name, value)
}

// isFull reports whether a limit is nearly exhausted.
func isFull(used, limit int64) bool { return used*100 >= limit*fullPercent }

// Threads checks the limits of processes and threads; the lower of two limits counts.
func (m Machine) Threads() Finding {
	f := Finding{Check: "processes"}
	pids, err := m.number("proc/sys/kernel/pid_max")
	if err != nil {
		return Unknown(f.Check, err)
	}
	threads, err := m.number("proc/sys/kernel/threads-max")
	if err != nil {
		return Unknown(f.Check, err)
	}
	used, err := pidlimit.Running(m.path("proc"))
	if err != nil {
		return Unknown(f.Check, err)
	}
	limit, name, wanted := pids, "kernel.pid_max", int64(4194304) // the maximum, and systemd's setting
	if threads < limit {
		limit, name, wanted = threads, "kernel.threads-max", max(4*minThreads, 4*used)
	}
	f.Detail = fmt.Sprintf("%d of %d (%s)", used, limit, name)
	if limit < minThreads || isFull(used, limit) {
		return f.With(Warning, f.Detail+": too few are left for containers", sysctl(name, wanted))
	}
	return f
}

// Swap checks that swap is off unless failSwapOn is false. syncloop refuses to start with swap, as the kubelet does.
func (m Machine) Swap(failSwapOn bool) Finding {
	f := Ok("swap", "off")
	proc, err := m.proc()
	if err != nil {
		return Unknown(f.Check, err)
	}
	swaps, err := proc.Swaps()
	if err != nil {
		return Unknown(f.Check, err)
	}
	var devices []string
	for _, swap := range swaps {
		devices = append(devices, swap.Filename)
	}
	switch {
	case len(devices) == 0:
		return f
	case !failSwapOn:
		f.Detail = "on, and failSwapOn is false: " + strings.Join(devices, ", ")
		return f
	default:
		return f.With(Fault, "on ("+strings.Join(devices, ", ")+"), and failSwapOn is not false: syncloop does not start",
			"swapoff -a, and take its lines out of /etc/fstab; or failSwapOn: false in the configuration")
	}
}

const (
	// staUnsync and timeError are STA_UNSYNC and TIME_ERROR of adjtimex(2).
	staUnsync, timeError = 0x40, 5
	// clockSlack is the tolerance for a file's modification time in the future.
	clockSlack = time.Minute
)

// earliest is earlier than the boot of every machine that can run this program. A clock before it was never set.
var earliest = time.Date(2025, time.January, 1, 0, 0, 0, 0, time.UTC)

// Clock checks that the clock was set, was not set back since the node wrote its files into the state directory, and is
// synchronized. The ages of pods, certificates and the times in traces depend on it; the order of events does not.
func (m Machine) Clock(stateDir string) Finding {
	now := m.Now()
	f := Ok("clock", "synchronized, %s", now.UTC().Format(time.RFC3339))
	const keep = "timedatectl set-ntp true, or apt-get install chrony"
	booted, err := m.bootTime()
	if err != nil {
		return Unknown(f.Check, err)
	}
	if now.Before(earliest) || booted.Before(earliest) {
		return f.With(Warning, fmt.Sprintf("it is %s, and the machine was started at %s: the clock was never set",
			now.UTC().Format(time.RFC3339), booted.UTC().Format(time.RFC3339)), keep)
	}
	if file, written := m.newest(stateDir); written.After(now.Add(clockSlack)) {
		return f.With(Warning, fmt.Sprintf("it is %s, and %s was written at %s: the clock was set back",
			now.UTC().Format(time.RFC3339), file, written.UTC().Format(time.RFC3339)), keep)
	}
	var timex unix.Timex
	state, err := m.Adjtimex(&timex)
	if err != nil {
		return Unknown(f.Check, err)
	}
	if state == timeError || timex.Status&staUnsync != 0 {
		return f.With(Warning, "it is not synchronized (adjtimex reports STA_UNSYNC)", keep)
	}
	return f
}

// bootTime returns the time of the kernel's boot, by the present clock.
func (m Machine) bootTime() (time.Time, error) {
	proc, err := m.proc()
	if err != nil {
		return time.Time{}, err
	}
	stat, err := proc.Stat()
	if err != nil {
		return time.Time{}, err
	}
	if stat.BootTime == 0 {
		return time.Time{}, errors.New("/proc/stat has no line btime")
	}
	return time.Unix(int64(stat.BootTime), 0), nil //nolint:gosec // seconds since 1970
}

// newest returns the most recently written file directly in a directory; nothing if there is none.
func (m Machine) newest(dir string) (file string, written time.Time) {
	entries, err := os.ReadDir(m.path(dir))
	if err != nil {
		return "", time.Time{}
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().After(written) {
			file, written = filepath.Join(dir, e.Name()), info.ModTime()
		}
	}
	return file, written
}
