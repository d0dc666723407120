package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// adjustLimits lets this process have as many files open as the configuration says, and tells of settings of the kernel that are not
// those that a kubelet makes: they are the whole machine's, and for its operator to change.
func adjustLimits(maxOpenFiles int64, machine fs.FS, logger *slog.Logger) {
	if err := limitOpenFiles(uint64(maxOpenFiles)); err != nil { //nolint:gosec // it was validated to be more than 0
		level := slog.LevelWarn
		if maxOpenFiles == nodeconfig.DefaultMaxOpenFiles {
			level = slog.LevelInfo // nobody has asked for them
		}
		logger.Log(context.Background(), level, "this process may not have as many files open as maxOpenFiles says", telemetry.KeyError, err)
	}
	if other := nodeconfig.OtherKernelDefaults(machine); len(other) > 0 {
		logger.Info("settings of the kernel are not those that a kubelet makes; to have them, set them with sysctl -w and in /etc/sysctl.d", "settings", strings.Join(other, "; "))
	}
}

// limitOpenFiles limits how many files this process may have open, and what it starts. Without the right to raise the hard limit it has as
// many as that permits, and the error says so.
func limitOpenFiles(most uint64) error {
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most})
	if !errors.Is(err, unix.EPERM) {
		return wrapLimit(most, err)
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return wrapLimit(most, err)
	}
	now.Cur = min(most, now.Max)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return wrapLimit(most, err)
	}
	return fmt.Errorf("maxOpenFiles: it has %d instead of %d: start it with a higher limit (LimitNOFILE of the unit, or ulimit -Hn), or set maxOpenFiles to that: %w",
		now.Cur, most, err)
}

func wrapLimit(most uint64, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("maxOpenFiles: limit the open files to %d: %w: set what fs.nr_open of the kernel permits", most, err)
}

// profileContention has the profile of what waits for others made, which costs processor time, where the configuration wants it and the
// profiles can be read.
func profileContention(kubelet *kubeletconfigv1beta1.KubeletConfiguration) {
	if kubelet.EnableContentionProfiling && *kubelet.EnableDebuggingHandlers && *kubelet.EnableProfilingHandler {
		runtime.SetBlockProfileRate(1)
	}
}
