// Package machineuuid reads the ID of the machine's hardware. On most machines only root may read it, so root saves it
// for a nodestatus that runs as another user: `quartet prepare --unit`.
package machineuuid

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/cadvisor/lib/utils/sysfs"
	"github.com/google/cadvisor/lib/utils/sysinfo"

	"github.com/quartet-node/quartet/internal/statedir"
)

const (
	// file is the name of the file in the state directory of a service.
	file = "machine-system-uuid"
	// fileMode lets the service read the file, regardless of its user. Its directory is private.
	fileMode = 0o644
	// maxFile bounds what is read of the file.
	maxFile = 256
)

// Save writes the ID, as this process reads it, for a service with a state directory. It is a no-op on a machine
// without one.
func Save(stateDir string) error {
	uuid := read()
	if uuid == "" {
		return nil
	}
	return statedir.WriteIfChanged(filepath.Join(stateDir, file), []byte(uuid+"\n"), fileMode)
}

// Of returns the ID: what was saved in a state directory, otherwise what this process may read; empty if there is none.
func Of(stateDir string) (string, error) {
	saved, err := os.ReadFile(filepath.Join(stateDir, file))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return read(), nil
	case err != nil:
		return read(), err
	}
	return strings.TrimSpace(string(saved[:min(len(saved), maxFile)])), nil
}

// read returns the ID as this process may read it. Virtual machines often have none.
func read() string {
	uuid, err := sysinfo.GetSystemUUID(sysfs.NewRealSysFs())
	if err != nil {
		return ""
	}
	return strings.TrimSpace(uuid)
}
