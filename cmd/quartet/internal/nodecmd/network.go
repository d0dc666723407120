package nodecmd

import (
	"fmt"
	"maps"
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

// Add registers the flags.
func (f *NetworkFlags) Add(flags *pflag.FlagSet) {
	flags.StringToStringVar(&f.Listen, peertls.FlagListen, nil,
		"`addresses` at which services are reached from other machines by TLS, service=host:port, separated by commas")
	nodeconfig.AddTLSFiles(flags, &f.Files)
	flags.StringVar(&f.AllowedNames, "allowed-names", "",
		"`names` of certificates that may make every call there but read secrets, separated by commas")
	flags.StringVar(&f.ObserveNames, "observe-names", "",
		"`names` of certificates that may read there, separated by commas")
}

// check fails if a service is unknown, or if no service is served to the names. Each service checks the rest.
func (f *NetworkFlags) check() error {
	if len(f.Listen) == 0 && f.AllowedNames+f.ObserveNames != "" {
		return nodeconfig.Errors{
			fmt.Errorf("--allowed-names, --observe-names: nothing is served on the network: give --%s", peertls.FlagListen),
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

// TLSArgs returns the flags of the files.
func TLSArgs(files peertls.Files) []string {
	return given([]setFlag{{peertls.FlagCert, files.Cert}, {peertls.FlagKey, files.Key}, {peertls.FlagCA, files.CA}})
}

// of returns the flags of a service, which calls another machine or not.
func (f *NetworkFlags) of(service layout.Service, calls bool) []string {
	address, served := f.Listen[string(service)]
	var args []string
	if served {
		args = append(args, "--"+peertls.FlagListen+"="+address)
		args = append(args, given([]setFlag{{"allowed-names", f.AllowedNames}, {"observe-names", f.ObserveNames}})...)
	}
	if served || calls {
		args = append(args, TLSArgs(f.Files)...)
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
