package vm

import (
	"bytes"
	"fmt"
	"os"
	"time"
)

// counter returns the processor's time-stamp counter.
func counter() uint64

// measured is how long the counter is measured.
const measured = 100 * time.Millisecond

// clockParameters returns the parameters with which a machine's kernel takes the time-stamp counter as its clock, which
// qemu passes on from this machine. Without them the kernel asks an emulated device for each time, which makes a node
// half as fast. The kernel's own measurement of the counter's frequency fails on a busy machine.
func clockParameters() string {
	cpus, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !bytes.Contains(cpus, []byte(" constant_tsc")) {
		return ""
	}
	var best time.Duration
	var khz uint64
	for range 3 { // the shortest is disturbed least
		begin, first := time.Now(), counter()
		<-time.After(measured)
		took, last := time.Since(begin), counter()
		if best == 0 || took < best {
			best, khz = took, (last-first)*uint64(time.Millisecond)/uint64(took)
		}
	}
	return fmt.Sprintf(" tsc=reliable tsc_early_khz=%d", khz)
}
