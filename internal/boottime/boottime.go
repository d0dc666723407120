// Package boottime reads the clock by which freshness is compared between processes of one machine: CLOCK_BOOTTIME. It
// runs from the machine's boot, also through suspension, is the same in every process, and nobody can set it. syncloop
// notes it after its writes to the runtime; pleg stamps every inspection with it before the first call.
package boottime

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the machine's boot. Linux always has the clock; Now panics on a kernel that does not, for
// nothing that was observed could be told from what is out of date.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("reading CLOCK_BOOTTIME: %v", err))
	}
	return time.Duration(ts.Nano())
}
