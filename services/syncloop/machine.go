package main

import (
	"io/fs"
	"log/slog"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// machineOf looks up what a machine is able to do, once: it is that for as long as it runs. Root has its files by their paths without
// the first slash.
func machineOf(root fs.FS, logger *slog.Logger) admission.Machine {
	machine := admission.Machine{AppArmor: enforcesAppArmor(root)}
	release, err := fs.ReadFile(root, "proc/sys/kernel/osrelease")
	if err == nil {
		machine.Kernel, err = version.ParseGeneric(strings.TrimSpace(string(release)))
	}
	if err != nil {
		logger.Warn("the kernel's version is not known: pods that set a sysctl which is safe on newer kernels only are refused", telemetry.KeyError, err)
	}
	return machine
}

// enforcesAppArmor tells whether AppArmor is there and turned on.
func enforcesAppArmor(root fs.FS) bool {
	if _, err := fs.Stat(root, "sys/kernel/security/apparmor"); err != nil {
		return false
	}
	enabled, err := fs.ReadFile(root, "sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(enabled), "Y")
}
