package nodecmd

import (
	"io"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// An empty flag allows no source, which differs from a missing flag. The other services have no such flags.
func TestConfigmuxAndSyncloopGetTheSourcesThatMayGiveHostPrivileges(t *testing.T) {
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var opts Options
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	opts.addFlags(flags)
	if err := flags.Parse(
		[]string{"--hostname-override=node-1", "--host-network-sources=file,local", "--privileged-sources="},
	); err != nil {
		t.Fatal(err)
	}
	for _, service := range layout.Services() {
		cfg, err := nodeconfig.Parse(service, opts.args(l, service), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", service, err)
			continue
		}
		if service != layout.ConfigMux && service != layout.SyncLoop {
			continue
		}
		p := cfg.HostPrivileges
		if !slices.Equal(p.HostNetwork, []string{"file", "local"}) || len(p.Privileged) != 0 ||
			!slices.Equal(p.HostPID, []string{"*"}) {
			t.Errorf("%s has %+v", service, p)
		}
	}
}
