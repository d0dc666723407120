// Package configmux determines the desired pods of this node: it merges the pods of all sources and serves the result
// as quartet.config.v1. It needs to read the manifests, and needs neither root nor the container runtime.
package configmux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/service"
)

// Main is the main function of the process. It ends it.
func Main() {
	// The memory of this process contains secrets: it must not be dumped, and no other process of its user may read it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintf(os.Stderr, "configmux: cannot keep the kernel from dumping its memory: %v\n", err)
		os.Exit(1)
	}
	service.Main(nodeconfig.ConfigMux, run)
}
