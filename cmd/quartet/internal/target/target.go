// Package target finds the node that a command is about: by --state-dir, else by QUARTET_STATE_DIR, else the default
// one. Every command that asks a running node uses it, so that one variable points all of them at another node.
package target

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
)

// EnvStateDir is the environment variable that names the state directory when the flag does not.
const EnvStateDir = "QUARTET_STATE_DIR"

// Addresses has what to dial for each of the four services.
type Addresses struct {
	ConfigMux, PLEG, SyncLoop, NodeStatus string
}

// AddFlag registers --state-dir on a command, with the environment's value or the default one as its default.
func AddFlag(flags *pflag.FlagSet, stateDir *string) {
	flags.StringVar(stateDir, "state-dir", DefaultStateDir(),
		"directory of the node's state; "+EnvStateDir+" sets the default")
}

// DefaultStateDir is the state directory when no flag names one.
func DefaultStateDir() string {
	if dir := os.Getenv(EnvStateDir); dir != "" {
		return dir
	}
	return layout.DefaultStateDir
}

// SocketAddresses is what to dial to reach the node of a state directory; empty means the default one. It fails only
// when a relative path cannot be made absolute.
func SocketAddresses(stateDir string) (Addresses, error) {
	if stateDir == "" {
		stateDir = DefaultStateDir()
	}
	l, err := layout.New(stateDir)
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
