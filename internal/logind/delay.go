package logind

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
)

// DropIn is the path of the drop-in file that extends logind's delay.
const DropIn = "/etc/systemd/logind.conf.d/99-quartet.conf"

const (
	// reloads is the number of checks whether logind has reloaded its configuration, first after reloadPause, then after
	// twice the time before.
	reloads     = 5
	reloadPause = 100 * time.Millisecond
)

// Delayer is logind, as Lengthen needs it: a Conn.
type Delayer interface {
	InhibitDelay(ctx context.Context) (time.Duration, error)
	Reload(ctx context.Context) error
}

// Lengthen extends logind's delay with the drop-in file to what is needed, and reports whether it has. If that is not
// possible, for example because the file is not writable, problem says what to do. It fails if logind does not answer.
func Lengthen(
	ctx context.Context, conn Delayer, file string, needed time.Duration,
) (extended bool, problem string, err error) {
	delay, err := conn.InhibitDelay(ctx)
	if err != nil || delay >= needed {
		return false, "", err
	}
	failed := WriteDropIn(file, needed)
	if failed == nil {
		if failed = conn.Reload(ctx); failed == nil {
			if delay, err = reloaded(ctx, conn, needed); err != nil {
				return false, "", err
			}
		}
	}
	if delay >= needed {
		return true, "", nil
	}
	problem = fmt.Sprintf(
		"logind waits with a shutdown for %v only, the pods may take %v: write %q to %s and run `systemctl kill --signal=HUP systemd-logind`",
		delay,
		needed,
		DropInText(needed),
		file,
	)
	if failed != nil {
		return false, problem + ": " + failed.Error(), nil
	}
	return false, problem + "; the file is there, look for InhibitDelayMaxSec in files that are read after it, and whether it is that of the machine or of a container", nil
}

// reloaded waits briefly until logind has read its configuration again.
func reloaded(ctx context.Context, conn Delayer, needed time.Duration) (delay time.Duration, err error) {
	pause := reloadPause
	for range reloads {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(pause):
		}
		if delay, err = conn.InhibitDelay(ctx); err != nil || delay >= needed {
			return delay, err
		}
		pause *= 2
	}
	return delay, nil
}

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
