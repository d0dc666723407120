package nodecmd

import "github.com/spf13/pflag"

// NodeFlags say what the node is and who may call its services.
type NodeFlags struct {
	// These are passed to the services if they are set.
	AllowedUIDs, HostnameOverride, NodeIP, NodeLabels string
}

// Add adds the flags.
func (f *NodeFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(
		&f.AllowedUIDs,
		"allowed-uids",
		"",
		"`uids` of users, besides root, that may connect to the services' sockets, separated by commas",
	)
	flags.StringVar(
		&f.HostnameOverride,
		"hostname-override",
		"",
		"`name` of the node; this machine's host name when empty",
	)
	flags.StringVar(&f.NodeIP, "node-ip", "", "`address` that the node reports; chosen when empty")
	flags.StringVar(&f.NodeLabels, "node-labels", "", "`labels` for the node, key=value, separated by commas")
}

// Args returns the flags as the arguments of another command that has them.
func (f *NodeFlags) Args() []string {
	return []string{
		"--allowed-uids=" + f.AllowedUIDs, "--hostname-override=" + f.HostnameOverride,
		"--node-ip=" + f.NodeIP, "--node-labels=" + f.NodeLabels,
	}
}
