package nodecmd

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/peertls"
)

// ConfigmuxFlags are for a node whose pods come from a configmux that this command does not start, such as that of a
// site.
type ConfigmuxFlags struct {
	// Address is its address; empty if the node has one of its own.
	Address string
	// Objects is passed to syncloop.
	Objects bool
}

const (
	flagConfigmuxAddress = "configmux-address"
	flagConfigmuxObjects = "configmux-objects"
)

// Add registers the flags.
func (f *ConfigmuxFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.Address, flagConfigmuxAddress, "",
		"`address` of a running configmux, such as that of a site, to get pods from instead of starting one: "+
			"HOST:PORT or dns:///NAME:PORT with TLS")
	flags.BoolVar(&f.Objects, flagConfigmuxObjects, false,
		"get config maps, secrets, claims and services from the configmux of a site, and not from the API server")
}

// Args returns the flags as the arguments of another command that has them.
func (f *ConfigmuxFlags) Args() []string {
	var args []string
	if f.Address != "" {
		args = append(args, "--"+flagConfigmuxAddress+"="+f.Address)
	}
	if f.Objects {
		args = append(args, "--"+flagConfigmuxObjects)
	}
	return args
}

// IsGiven reports whether the pods come from a configmux that is not of the node.
func (f *ConfigmuxFlags) IsGiven() bool { return f.Address != "" }

// Services returns the services that are started.
func (f *ConfigmuxFlags) Services() []layout.Service {
	return slices.DeleteFunc(layout.Services(), func(s layout.Service) bool {
		return f.IsGiven() && s == layout.ConfigMux
	})
}

// check fails for flags without an effect. syncloop checks the address.
func (f *ConfigmuxFlags) check(files peertls.Files, listens map[string]string, programs map[string]string) error {
	switch {
	case f.IsGiven() && listens[string(layout.ConfigMux)] != "":
		return nodeconfig.Errors{fmt.Errorf("--%s: no configmux is started with --%s", peertls.FlagListen, flagConfigmuxAddress)}
	case f.IsGiven() && programs[string(layout.ConfigMux)] != "":
		return nodeconfig.Errors{fmt.Errorf("--part-program: no configmux is started with --%s", flagConfigmuxAddress)}
	case f.IsGiven():
		return nil
	case f.Objects:
		return nodeconfig.Errors{
			fmt.Errorf("--%s: a configmux of this node serves no site: give --%s", flagConfigmuxObjects, flagConfigmuxAddress),
		}
	case files != peertls.Files{} && len(listens) == 0:
		return nodeconfig.Errors{
			fmt.Errorf("--%s, --%s, --%s: nothing is on the network: give --%s, or leave them out",
				peertls.FlagCert, peertls.FlagKey, peertls.FlagCA, flagConfigmuxAddress),
		}
	}
	return nil
}

// of returns the flags of a service: only syncloop calls configmux.
func (f *ConfigmuxFlags) of(service layout.Service) []string {
	if service != layout.SyncLoop {
		return nil
	}
	return f.Args()
}
