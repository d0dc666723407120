// Package disks runs whole nodes on disks that fail: full, broken, read-only or hanging, for one file at a time.
package disks

import (
	"os"
	"testing"

	"github.com/quartet-node/quartet/test/diskfault"
)

func TestMain(m *testing.M) {
	diskfault.Launch()
	os.Exit(m.Run())
}
