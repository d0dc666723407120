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

// NetworkFlags are what the services serve for other machines. Among each other they use unix sockets.
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

// of returns the flags of a service.
func (f *NetworkFlags) of(service layout.Service) []string {
	address, served := f.Listen[string(service)]
	if !served {
		return nil
	}
	args := []string{"--" + peertls.FlagListen + "=" + address}
	for _, flag := range []struct{ name, value string }{
		{peertls.FlagCert, f.Files.Cert}, {peertls.FlagKey, f.Files.Key}, {peertls.FlagCA, f.Files.CA},
		{"allowed-names", f.AllowedNames}, {"observe-names", f.ObserveNames},
	} {
		if flag.value != "" {
			args = append(args, "--"+flag.name+"="+flag.value)
		}
	}
	return args
}
