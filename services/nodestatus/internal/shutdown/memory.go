package shutdown

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/quartet-node/quartet/internal/statedir"
)

// fileName is the kubelet's; so are the two times in the file.
const fileName = "graceful_node_shutdown_state"

// memory is what outlives this process, and of it the times outlive the machine.
type memory struct {
	// Boot is the boot of the machine that is being ended; empty when none is, or no longer.
	Boot string `json:"boot,omitempty"`
	// StartTime is when the last shutdown began, EndTime when its pods had ended; zero when none did.
	StartTime time.Time `json:"startTime,omitzero"`
	EndTime   time.Time `json:"endTime,omitzero"`
	// Group is the group of pods that is being ended, since GroupSince after the boot.
	Group      int           `json:"group,omitempty"`
	GroupSince time.Duration `json:"groupSinceNs,omitempty"`
}

// load reads what was remembered; nothing, and no error, when there is no file.
func load(stateDir string) (m memory, err error) {
	path := filepath.Join(stateDir, fileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return memory{}, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return memory{}, fmt.Errorf("reading how the last shutdown went from %s: %w", path, err)
	}
	return m, nil
}

// save writes what is to be remembered into a state directory, which must exist.
func save(stateDir string, m memory) error {
	data, err := json.Marshal(m)
	if err == nil {
		err = statedir.WriteFileAtomic(filepath.Join(stateDir, fileName), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("remembering how a shutdown goes: %w", err)
	}
	return nil
}
