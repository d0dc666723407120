// Package boottime reads CLOCK_BOOTTIME, the clock by which processes of one machine compare freshness. It counts from
// the machine's boot, includes suspension, is the same in every process, and cannot be set. syncloop reads it after its
// writes to the runtime; pleg stamps every inspection with it before the first call.
package boottime

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the machine's boot. It panics if the kernel lacks the clock, which every Linux has,
// because freshness could not be decided without it.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("reading CLOCK_BOOTTIME: %v", err))
	}
	return time.Duration(ts.Nano())
}
