package vm

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quartet-node/quartet/test/vm/boot"
)

// inside reports whether this process runs in a machine.
func inside() bool { return Start() > 0 }

// Start returns which start of the machine this is: 1 for the first, 2 for that after Restart; 0 outside of machines.
func Start() int {
	start, err := strconv.Atoi(os.Getenv(boot.Variable))
	if err != nil {
		return 0
	}
	return start
}

// Restart restarts the machine at once, as if its power had failed: nothing is written to the disks any more. The test
// begins again from its first line, and Start says so. A test that has failed ends instead.
func Restart(t testing.TB) {
	t.Helper()
	if t.Failed() {
		t.FailNow()
	}
	port, err := os.OpenFile(boot.Status, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err == nil {
		_, err = port.WriteString(boot.Restart + "\n")
		err = errors.Join(err, unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1)) // waits until it is printed
	}
	if err == nil {
		err = os.WriteFile("/proc/sysrq-trigger", []byte("b"), 0)
	}
	if err != nil {
		t.Fatalf("restart the machine: %v", err)
	}
	select {} // until the kernel has done it
}
