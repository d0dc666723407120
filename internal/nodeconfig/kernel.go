package nodeconfig

import (
	"fmt"
	"io/fs"
	"strings"
)

// kernelDefaults are the kernel settings that the kubelet requires: overcommit of memory and the OOM killer instead of
// a panic, a panic on every kernel error and a reboot after 10 s, and enough keys of root for many containers.
var kernelDefaults = []struct{ name, value string }{
	{"vm.overcommit_memory", "1"},
	{"vm.panic_on_oom", "0"},
	{"kernel.panic", "10"},
	{"kernel.panic_on_oops", "1"},
	{"kernel.keys.root_maxkeys", "1000000"},
	{"kernel.keys.root_maxbytes", "25000000"},
}

// OtherKernelDefaults returns the kernel settings of a machine that differ from those that the kubelet requires, as
// "NAME is VALUE, and should be VALUE". The machine is given as its root file system.
func OtherKernelDefaults(machine fs.FS) []string {
	var other []string
	for _, want := range kernelDefaults {
		content, err := fs.ReadFile(machine, "proc/sys/"+strings.ReplaceAll(want.name, ".", "/"))
		if err != nil {
			other = append(other, fmt.Sprintf("%s cannot be read (%v), and should be %s", want.name, err, want.value))
		} else if value := strings.TrimSpace(string(content)); value != want.value {
			other = append(other, fmt.Sprintf("%s is %s, and should be %s", want.name, value, want.value))
		}
	}
	return other
}
