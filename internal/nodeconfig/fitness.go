package nodeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"
)

// Values of memorySwap.swapBehavior.
const (
	// NoSwap prevents every container from swapping.
	NoSwap = "NoSwap"
	// LimitedSwap lets containers of burstable pods swap in proportion to their memory requests. With cgroup v1 it is
	// NoSwap.
	LimitedSwap = "LimitedSwap"
)

// FitMachine reports every field whose value does not fit a machine, given as its root file system. The error is nil or
// an [Errors]. A machine whose files cannot be read counts as fit, except for an unreadable list of swap devices.
func (c Config) FitMachine(machine fs.FS) error {
	var errs Errors
	refuse := func(field, problem string) {
		errs = append(errs, &FieldError{File: c.fileOrDefaults(), Field: field, Problem: problem})
	}
	if ptr.Deref(c.Kubelet.FailSwapOn, true) {
		devices, err := swapDevices(machine)
		switch {
		case err != nil:
			refuse(
				"failSwapOn",
				fmt.Sprintf("whether swap is on is not known: %v: make the file readable, or set failSwapOn: false", err),
			)
		case len(devices) > 0:
			refuse(
				"failSwapOn",
				fmt.Sprintf(
					"running with swap on is not supported, and %s is on: turn swap off (swapoff -a, and take its lines out of /etc/fstab), "+
						"or set failSwapOn: false",
					strings.Join(devices, ", "),
				),
			)
		}
	}
	if c.Kubelet.ProtectKernelDefaults {
		for _, setting := range OtherKernelDefaults(machine) {
			refuse(
				"protectKernelDefaults",
				setting+": set it (sysctl -w, and a line in /etc/sysctl.d), or set protectKernelDefaults: false",
			)
		}
	}
	if HasCgroupV2(machine) {
		return errs.orNil()
	}
	// Unlike the kubelet's, the default is false: cgroup v1 is supported.
	if ptr.Deref(c.Kubelet.FailCgroupV1, false) {
		refuse(
			"failCgroupV1",
			"this machine has cgroup v1: start it with cgroup v2 (systemd.unified_cgroup_hierarchy=1 on the kernel's command line), or set failCgroupV1: false",
		)
	}
	if !ptr.Deref(c.Kubelet.SingleProcessOOMKill, true) {
		refuse("singleProcessOOMKill", "false needs cgroup v2, and this machine has cgroup v1: leave the field out")
	}
	return errs.orNil()
}

func (c Config) fileOrDefaults() string {
	if c.File == "" {
		return "the defaults"
	}
	return c.File
}

func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// swapDevices returns the devices and files with swap. A machine without a list of them has none.
func swapDevices(machine fs.FS) ([]string, error) {
	table, err := fs.ReadFile(machine, "proc/swaps")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var devices []string
	_, rows, _ := strings.Cut(string(table), "\n") // the first line is the header
	for row := range strings.Lines(rows) {
		if columns := strings.Fields(row); len(columns) > 0 {
			devices = append(devices, columns[0])
		}
	}
	return devices, nil
}

// HasCgroupV2 reports whether a machine has only cgroups of version 2. It is given as its root file system.
func HasCgroupV2(machine fs.FS) bool {
	_, err := fs.Stat(machine, "sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

func validateSwap(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	switch behavior := cfg.MemorySwap.SwapBehavior; behavior {
	case "", NoSwap, LimitedSwap:
	default:
		errs.add("memorySwap.swapBehavior", fmt.Sprintf("is %q, must be %s or %s", behavior, NoSwap, LimitedSwap))
	}
}
