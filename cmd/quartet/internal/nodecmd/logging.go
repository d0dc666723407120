package nodecmd

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// LogFlags are the flags of the logs of the services.
type LogFlags struct {
	// Verbosity is that of all services but those in Parts.
	Verbosity int
	// Parts has the verbosity of some services.
	Parts map[string]int
	// Format is text or json; empty for that of the file.
	Format string
}

// Add adds the flags.
func (f *LogFlags) Add(flags *pflag.FlagSet) {
	flags.IntVarP(
		&f.Verbosity,
		"v",
		"v",
		0,
		"log verbosity of the services: 0 is what an operator needs, 4 and more is for debugging",
	)
	flags.StringToIntVar(
		&f.Parts,
		"part-verbosity",
		nil,
		"log verbosity of some services, instead of that of --v, as `SERVICE=N,SERVICE=N`",
	)
	flags.StringVar(
		&f.Format,
		"logging-format",
		"",
		"`format` of the log: text or json; that of the file's logging.format when empty",
	)
}

// Args returns the flags as the arguments of another command that has them.
func (f *LogFlags) Args() []string {
	args := []string{"--v=" + strconv.Itoa(f.Verbosity), "--logging-format=" + f.Format}
	for _, name := range slices.Sorted(maps.Keys(f.Parts)) {
		args = append(args, "--part-verbosity="+name+"="+strconv.Itoa(f.Parts[name]))
	}
	return args
}

// check fails if a name of --part-verbosity is not a service.
func (f *LogFlags) check() error {
	for _, name := range slices.Sorted(maps.Keys(f.Parts)) {
		if !slices.Contains(layout.Services(), layout.Service(name)) {
			return nodeconfig.Errors{
				fmt.Errorf("--part-verbosity: %q must be configmux, pleg, syncloop or nodestatus", name),
			}
		}
	}
	return nil
}

// of returns the flags of a service. Without any it has the verbosity and the format of the file.
func (f *LogFlags) of(service layout.Service) []string {
	var args []string
	if f.Format != "" {
		args = append(args, "--logging-format="+f.Format)
	}
	verbosity, own := f.Parts[string(service)]
	if !own {
		verbosity = f.Verbosity
	}
	if own || verbosity != 0 {
		args = append(args, "--v="+strconv.Itoa(verbosity))
	}
	return args
}
