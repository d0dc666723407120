// Package target selects the node of a command: by --state-dir, or else QUARTET_STATE_DIR, or else the default. Every
// command for a running node uses it. Commands that only call its services also take addresses, see Node.
package target

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
)

// EnvStateDir is the environment variable with the state directory.
const EnvStateDir = "QUARTET_STATE_DIR"

// Addresses holds the addresses of the four services.
type Addresses struct {
	ConfigMux, PLEG, SyncLoop, NodeStatus string
}

// AddFlag registers --state-dir on a command, with the environment's value or the default one as its default.
func AddFlag(flags *pflag.FlagSet, stateDir *string) {
	flags.StringVar(stateDir, "state-dir", DefaultStateDir(),
		"directory of the node's state; "+EnvStateDir+" sets the default")
}

// DefaultStateDir returns the state directory of a command without the flag.
func DefaultStateDir() string {
	if dir := os.Getenv(EnvStateDir); dir != "" {
		return dir
	}
	return layout.DefaultStateDir
}

// orDefault returns the state directory, or the default one if it is empty.
func orDefault(stateDir string) string {
	if stateDir == "" {
		return DefaultStateDir()
	}
	return stateDir
}

// SocketAddresses returns the addresses of the node of a state directory; empty means the default. It fails only if a
// relative path cannot be made absolute.
func SocketAddresses(stateDir string) (Addresses, error) {
	l, err := layout.New(orDefault(stateDir))
	if err != nil {
		return Addresses{}, err
	}
	return Addresses{
		ConfigMux:  l.Address(layout.ConfigMux),
		PLEG:       l.Address(layout.PLEG),
		SyncLoop:   l.Address(layout.SyncLoop),
		NodeStatus: l.Address(layout.NodeStatus),
	}, nil
}
