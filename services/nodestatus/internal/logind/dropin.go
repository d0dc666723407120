package logind

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
)

// DropIn is the path of the drop-in file that extends logind's delay.
const DropIn = "/etc/systemd/logind.conf.d/99-quartet.conf"

// DropInText returns the content of DropIn for a delay, rounded up to seconds.
func DropInText(delay time.Duration) string {
	seconds := (delay + time.Second - 1) / time.Second
	return fmt.Sprintf(
		"# Quartet ends the pods of this node before the machine goes down: shutdownGracePeriod of its configuration.\n[Login]\nInhibitDelayMaxSec=%d\n",
		seconds,
	)
}

// WriteDropIn writes a drop-in file and creates its directory. Its error names the file.
func WriteDropIn(path string, delay time.Duration) error {
	const mode = 0o755 // as all directories there: anybody may read them
	if err := os.MkdirAll(filepath.Dir(path), mode); err != nil {
		return fmt.Errorf("the directory of logind's drop-in files: %w", err)
	}
	if err := statedir.WriteFileAtomic(path, []byte(DropInText(delay)), 0o644); err != nil {
		return fmt.Errorf("have logind wait longer: %w", err)
	}
	return nil
}
