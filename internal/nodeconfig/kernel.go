package nodeconfig

import (
	"fmt"
	"io/fs"
	"strings"
)

// kernelDefaults are the settings of the kernel that a kubelet wants: it may promise more memory than there is and ends processes
// instead of the machine when none is left; it starts again 10 s after a panic, which any error of its own is; and root may have keys for
// many containers.
var kernelDefaults = []struct{ name, value string }{
	{"vm.overcommit_memory", "1"},
	{"vm.panic_on_oom", "0"},
	{"kernel.panic", "10"},
	{"kernel.panic_on_oops", "1"},
	{"kernel.keys.root_maxkeys", "1000000"},
	{"kernel.keys.root_maxbytes", "25000000"},
}

// OtherKernelDefaults has the settings of a machine's kernel that are not those that a kubelet wants: "NAME is VALUE, and should be VALUE". The
// machine is the root of its file system.
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
