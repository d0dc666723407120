package site

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// dirMode lets only the owner read the checkpoints.
const dirMode = 0o700

// openDir makes the directory of the checkpoints, and returns the nodes that have one. With a list of names, other
// nodes have left the list, and their checkpoints are removed.
func (s *Site) openDir() ([]string, error) {
	if err := os.MkdirAll(s.cfg.Dir, dirMode); err != nil {
		return nil, fmt.Errorf("make the directory of the checkpoints: %w", err)
	}
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory of the checkpoints: %w", err)
	}
	var nodes []string
	for _, entry := range entries {
		// Another name is that of a file which is being written, or was put aside.
		name := entry.Name()
		if !entry.Type().IsRegular() || filepath.Ext(name) != extension {
			continue
		}
		name = name[:len(name)-len(extension)]
		switch {
		case len(validation.IsDNS1123Subdomain(name)) > 0:
		case len(s.cfg.Nodes.Names) > 0 && !slices.Contains(s.cfg.Nodes.Names, name):
			s.removeCheckpoint(name)
		default:
			nodes = append(nodes, name)
		}
	}
	return nodes, nil
}

// extension ends the name of a checkpoint.
const extension = ".pods"

// checkpoint returns the path of the checkpoint of a node.
func (s *Site) checkpoint(node string) string { return filepath.Join(s.cfg.Dir, node+extension) }

// removeCheckpoint removes the checkpoint of a node.
func (s *Site) removeCheckpoint(node string) {
	if err := os.Remove(s.checkpoint(node)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Logger.Warn("cannot remove the checkpoint of a node that is not of the site any more",
			"node", node, telemetry.KeyError, err)
	}
}
