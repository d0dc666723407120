package nodecmd

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/peertls"
)

// NetworkFlags are what the services serve for other machines, and the files of TLS, also for calls to other machines.
// Among each other they use unix sockets.
type NetworkFlags struct {
	// Listen has the addresses of the services that are served.
	Listen map[string]string
	Files  peertls.Files
	// AllowedNames and ObserveNames are passed to the services that are served.
	AllowedNames, ObserveNames string
}

const (
	flagAllowedNames = "allowed-names"
	flagObserveNames = "observe-names"
)

// Add registers the flags.
func (f *NetworkFlags) Add(flags *pflag.FlagSet) {
	flags.StringToStringVar(&f.Listen, peertls.FlagListen, nil,
		"`addresses` at which services are reached from other machines by TLS, service=host:port, separated by commas")
	nodeconfig.AddTLSFiles(flags, &f.Files)
	flags.StringVar(&f.AllowedNames, flagAllowedNames, "",
		"`names` of certificates that may make every call there but read secrets, separated by commas")
	flags.StringVar(&f.ObserveNames, flagObserveNames, "",
		"`names` of certificates that may read there, separated by commas")
}

// Args returns the flags as the arguments of another command that has them.
func (f *NetworkFlags) Args() []string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(f.Listen)) {
		args = append(args, "--"+peertls.FlagListen+"="+name+"="+f.Listen[name])
	}
	return slices.Concat(args, f.files(), f.names())
}

// Absolute makes the paths absolute.
func (f *NetworkFlags) Absolute() error {
	for flag, file := range map[string]*string{
		peertls.FlagCert: &f.Files.Cert, peertls.FlagKey: &f.Files.Key, peertls.FlagCA: &f.Files.CA,
	} {
		if *file == "" {
			continue
		}
		absolute, err := filepath.Abs(*file)
		if err != nil {
			return fmt.Errorf("making --%s absolute: %w", flag, err)
		}
		*file = absolute
	}
	return nil
}

// check fails if a service is unknown, or if no service is served to the names. Each service checks the rest.
func (f *NetworkFlags) check() error {
	if len(f.Listen) == 0 && f.AllowedNames+f.ObserveNames != "" {
		return nodeconfig.Errors{
			fmt.Errorf("--%s, --%s: nothing is served on the network: give --%s",
				flagAllowedNames, flagObserveNames, peertls.FlagListen),
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Listen)) {
		if !slices.Contains(layout.Services(), layout.Service(name)) {
			return nodeconfig.Errors{
				fmt.Errorf("--%s: %q must be configmux, pleg, syncloop or nodestatus", peertls.FlagListen, name),
			}
		}
	}
	return nil
}

func (f *NetworkFlags) files() []string {
	return given([]setFlag{
		{peertls.FlagCert, f.Files.Cert}, {peertls.FlagKey, f.Files.Key}, {peertls.FlagCA, f.Files.CA},
	})
}

func (f *NetworkFlags) names() []string {
	return given([]setFlag{{flagAllowedNames, f.AllowedNames}, {flagObserveNames, f.ObserveNames}})
}

// of returns the flags of a service, which calls another machine or not.
func (f *NetworkFlags) of(service layout.Service, calls bool) []string {
	address, served := f.Listen[string(service)]
	var args []string
	if served {
		args = append(args, "--"+peertls.FlagListen+"="+address)
		args = append(args, f.names()...)
	}
	if served || calls {
		args = append(args, f.files()...)
	}
	return args
}

// setFlag is a flag with its value.
type setFlag struct{ name, value string }

// given returns the flags with a value as arguments.
func given(flags []setFlag) []string {
	var args []string
	for _, flag := range flags {
		if flag.value != "" {
			args = append(args, "--"+flag.name+"="+flag.value)
		}
	}
	return args
}
