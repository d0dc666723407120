package syncloop

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

// adjustLimits sets the limit of open files to maxOpenFiles, and logs the kernel settings that differ from those of a
// kubelet. It does not change them, because they affect the whole machine.
func adjustLimits(maxOpenFiles int64, machine fs.FS, logger *slog.Logger) {
	if err := limitOpenFiles(uint64(maxOpenFiles)); err != nil { //nolint:gosec // it was validated to be more than 0
		level := slog.LevelWarn
		if maxOpenFiles == nodeconfig.DefaultMaxOpenFiles {
			level = slog.LevelInfo // the operator has not set it
		}
		logger.Log(context.Background(), level, "the limit of open files is not maxOpenFiles", telemetry.KeyError, err)
	}
	if other := nodeconfig.OtherKernelDefaults(machine); len(other) > 0 {
		logger.Info("kernel settings differ from those that a kubelet sets; set them with sysctl -w and in /etc/sysctl.d",
			"settings", strings.Join(other, "; "))
	}
}

// limitOpenFiles sets the limit of open files of this process and its children. Without the right to raise the hard
// limit it sets the highest possible limit, and returns an error that names it.
func limitOpenFiles(maximum uint64) error {
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: maximum, Max: maximum})
	if !errors.Is(err, unix.EPERM) {
		return wrapLimit(maximum, err)
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return wrapLimit(maximum, err)
	}
	now.Cur = min(maximum, now.Max)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return wrapLimit(maximum, err)
	}
	return fmt.Errorf("maxOpenFiles: the limit is %d instead of %d: start syncloop with a higher limit "+
		"(LimitNOFILE of the unit, or ulimit -Hn), or set maxOpenFiles to %[1]d: %[3]w", now.Cur, maximum, err)
}

func wrapLimit(maximum uint64, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("maxOpenFiles: limit the open files to %d: %w: the maximum is fs.nr_open of the kernel", maximum, err)
}

// profileContention turns on the profile of lock contention, which costs CPU time, if the configuration requests it and
// serves profiles.
func profileContention(kubelet *kubeletconfigv1beta1.KubeletConfiguration) {
	if rate := contentionRate(kubelet); rate > 0 {
		runtime.SetBlockProfileRate(rate)
	}
}

// contentionRate returns the rate of the profile of lock contention: 1 is each event, and 0 is none.
func contentionRate(kubelet *kubeletconfigv1beta1.KubeletConfiguration) int {
	if kubelet.EnableContentionProfiling && *kubelet.EnableDebuggingHandlers && *kubelet.EnableProfilingHandler {
		return 1
	}
	return 0
}
