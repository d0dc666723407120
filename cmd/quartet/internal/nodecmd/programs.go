package nodecmd

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// ProgramFlags are the flag of the programs that replace services.
type ProgramFlags struct {
	// Parts has the path of the program of some services; the others are Quartet's own.
	Parts map[string]string
}

// Add adds the flag.
func (f *ProgramFlags) Add(flags *pflag.FlagSet) {
	flags.StringToStringVar(
		&f.Parts,
		"part-program",
		nil,
		"programs to run in the place of some services, as `SERVICE=PATH,SERVICE=PATH`",
	)
}

// Args returns the flag as the arguments of another command that has it.
func (f *ProgramFlags) Args() []string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(f.Parts)) {
		args = append(args, "--part-program="+name+"="+f.Parts[name])
	}
	return args
}

// Absolute makes the paths absolute.
func (f *ProgramFlags) Absolute() error {
	for name, path := range f.Parts {
		absolute, err := filepath.Abs(path)
		if err != nil {
			return fmt.Errorf("making the path of --part-program %s absolute: %w", name, err)
		}
		f.Parts[name] = absolute
	}
	return nil
}

// check fails if a name is not a service, or a path not a program.
func (f *ProgramFlags) check() error {
	for _, name := range slices.Sorted(maps.Keys(f.Parts)) {
		if !slices.Contains(layout.Services(), layout.Service(name)) {
			return nodeconfig.Errors{
				fmt.Errorf("--part-program: %q must be configmux, pleg, syncloop or nodestatus", name),
			}
		}
		info, err := os.Stat(f.Parts[name])
		switch {
		case err != nil:
			return nodeconfig.Errors{fmt.Errorf("--part-program: the program of %s: %w", name, err)}
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			return nodeconfig.Errors{
				fmt.Errorf("--part-program: the program of %s, %s, is not a file that may be executed", name, f.Parts[name]),
			}
		}
	}
	return nil
}

// foreignArgs returns the arguments of a program that replaces a service: before the flags of the service, those that
// every part needs and that a service has by default or in the configuration file.
func foreignArgs(l layout.Layout, cfg nodeconfig.Config, service layout.Service, args []string) []string {
	return slices.Concat([]string{
		"--listen=" + l.Address(service), "--container-runtime-endpoint=" + cfg.Kubelet.ContainerRuntimeEndpoint,
	}, args)
}
