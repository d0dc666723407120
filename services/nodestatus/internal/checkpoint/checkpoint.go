// Package checkpoint stores the Node across restarts of nodestatus, with the transition times of its conditions. Only
// these times are lost without it, so an unreadable file is not fatal.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

const fileName = "nodestatus.json"

// content is the content of the file. New fields may be added; the meaning of existing ones may not change.
type content struct {
	Node         *v1.Node                           `json:"node"`
	PressureSeen map[v1.NodeConditionType]time.Time `json:"pressureSeen,omitempty"`
}

// Save writes the state into an existing state directory, and does not wait for a disk that hangs.
func Save(disk *statedir.Writer, stateDir string, state nodeobject.State) error {
	data, err := json.Marshal(content{Node: state.Node, PressureSeen: state.Eviction.Seen})
	if err == nil {
		data, err = statedir.WithChecksum(data, state.Node.Name)
	}
	if err != nil {
		return fmt.Errorf("writing the checkpoint of the node: %w", err)
	}
	err = disk.Write(func() error {
		return statedir.WriteFileAtomic(filepath.Join(stateDir, fileName), data, 0o600)
	})
	if err != nil {
		return fmt.Errorf("writing the checkpoint of the node: %w", err)
	}
	return nil
}

// Load reads the state of a node on a machine, whose ID is empty if it is not known. It returns nothing, and no error,
// if there is no file. A damaged file, and one of another node or machine, is set aside.
func Load(stateDir, nodeName, machineID string) (nodeobject.State, error) {
	var c content
	err := statedir.LoadChecked(filepath.Join(stateDir, fileName), nodeName, &c, func() error {
		switch {
		case c.Node == nil:
			return nil
		case c.Node.Name != nodeName:
			return fmt.Errorf("it is that of the node %q, and this is %q", c.Node.Name, nodeName)
		}
		if id := c.Node.Status.NodeInfo.MachineID; id != "" && machineID != "" && id != machineID {
			return fmt.Errorf("it is that of the machine %s, and this is %s", id, machineID)
		}
		return nil
	})
	var unreadable *statedir.UnreadableError
	if errors.As(err, &unreadable) {
		err = statedir.SetAside(unreadable.Path, err) // only times are lost
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nodeobject.State{}, nil
	}
	if err != nil {
		return nodeobject.State{}, fmt.Errorf("reading the checkpoint of the node: %w", err)
	}
	if c.Node == nil {
		return nodeobject.State{}, nil
	}
	return nodeobject.State{Node: c.Node, Eviction: eviction.State{Seen: c.PressureSeen}}, nil
}
