package nodecmd

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/statedir"
)

// writePID writes the file with the process ID of this command. It is for people: without it the node runs.
func writePID(l layout.Layout) error {
	return statedir.Inform(func() error {
		if err := os.MkdirAll(l.PIDDir(), dirMode); err != nil {
			return err
		}
		return statedir.ReplaceFile(l.PIDFile(Name), fmt.Appendf(nil, "%d\n", os.Getpid()), pidFileMode)
	})
}

// removePID removes the file.
func removePID(l layout.Layout, logger *slog.Logger) {
	err := statedir.Inform(func() error { return os.Remove(l.PIDFile(Name)) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		logger.Warn("cannot remove the PID file", "error", err)
	}
}
