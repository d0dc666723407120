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
	if err != nil {
		return fmt.Errorf("writing the checkpoint of the node: %w", err)
	}
	err = disk.Write(func() error {
		return statedir.WriteFileAtomic(filepath.Join(stateDir, fileName), append(data, '\n'), 0o600)
	})
	if err != nil {
		return fmt.Errorf("writing the checkpoint of the node: %w", err)
	}
	return nil
}

// Load reads the state of a node. It returns nothing, and no error, if there is no file or it is that of another node.
// A damaged file is set aside.
func Load(stateDir, nodeName string) (nodeobject.State, error) {
	var c content
	err := statedir.LoadCache(filepath.Join(stateDir, fileName), &c, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nodeobject.State{}, nil
	}
	if err != nil {
		return nodeobject.State{}, fmt.Errorf("reading the checkpoint of the node: %w", err)
	}
	if c.Node == nil || c.Node.Name != nodeName {
		return nodeobject.State{}, nil
	}
	return nodeobject.State{Node: c.Node, Eviction: eviction.State{Seen: c.PressureSeen}}, nil
}
