package shutdown

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
)

// fileName is the kubelet's, and so are the two times in the file.
const fileName = "graceful_node_shutdown_state"

// memory is the state that survives this process; its times also survive a reboot.
type memory struct {
	// Boot is the ID of the boot that is being shut down; empty if none is.
	Boot string `json:"boot,omitempty"`
	// StartTime is the start of the last shutdown, and EndTime the end of its pods; zero if there was none.
	StartTime time.Time `json:"startTime,omitzero"`
	EndTime   time.Time `json:"endTime,omitzero"`
	// Group is the group of pods that is being terminated, and GroupSince its start in boot time.
	Group      int           `json:"group,omitempty"`
	GroupSince time.Duration `json:"groupSinceNs,omitempty"`
}

// load reads the state; nothing, and no error, if there is no file. A damaged file is set aside.
func load(stateDir string) (m memory, err error) {
	err = statedir.LoadCache(filepath.Join(stateDir, fileName), "", &m, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return memory{}, nil
	}
	if err != nil {
		return memory{}, fmt.Errorf("reading the progress of the last shutdown: %w", err)
	}
	return m, nil
}

// save writes the state into an existing state directory.
func save(stateDir string, m memory) error {
	data, err := json.Marshal(m)
	if err == nil {
		data, err = statedir.WithChecksum(data, "")
	}
	if err == nil {
		err = statedir.WriteFileAtomic(filepath.Join(stateDir, fileName), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("saving the progress of a shutdown: %w", err)
	}
	return nil
}
