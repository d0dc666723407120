package syncloop

import (
	"io/fs"
	"log/slog"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// machineOf returns the features of the machine that admission depends on. They do not change while it runs. The paths
// in root have no leading slash.
func machineOf(root fs.FS, logger *slog.Logger) admission.Machine {
	machine := admission.Machine{AppArmor: enforcesAppArmor(root)}
	release, err := fs.ReadFile(root, "proc/sys/kernel/osrelease")
	if err == nil {
		machine.Kernel, err = version.ParseGeneric(strings.TrimSpace(string(release)))
	}
	if err != nil {
		logger.Warn("the kernel's version is unknown: pods with a sysctl that is safe only on newer kernels are rejected",
			telemetry.KeyError, err)
	}
	return machine
}

// enforcesAppArmor reports whether AppArmor is mounted and enabled.
func enforcesAppArmor(root fs.FS) bool {
	if _, err := fs.Stat(root, "sys/kernel/security/apparmor"); err != nil {
		return false
	}
	enabled, err := fs.ReadFile(root, "sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(enabled), "Y")
}
