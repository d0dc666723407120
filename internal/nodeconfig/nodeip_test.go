package nodeconfig_test

import (
	"io"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestTheNodeHasOneAddressOrOneOfEachFamily.
func TestTheNodeHasOneAddressOrOneOfEachFamily(t *testing.T) {
	for given, want := range map[string]string{
		"": "", "198.51.100.7": "198.51.100.7", "2001:DB8::7": "2001:db8::7", "198.51.100.7, 2001:db8::7": "198.51.100.7,2001:db8::7",
		"::": "::", "0.0.0.0": "0.0.0.0",
	} {
		cfg, err := nodeconfig.Parse(
			nodeconfig.NodeStatus,
			[]string{"--hostname-override=node-1", "--node-ip", given},
			io.Discard,
		)
		if err != nil || cfg.NodeIP != want {
			t.Errorf("%q: got %q, %v, want %q", given, cfg.NodeIP, err, want)
		}
	}
	for _, given := range []string{
		"here", "0.0.0.0,::", "198.51.100.7,::", "198.51.100.7,198.51.100.8", "198.51.100.7,2001:db8::7,2001:db8::8", "198.51.100.7,",
	} {
		_, err := nodeconfig.Parse(
			nodeconfig.NodeStatus,
			[]string{"--hostname-override=node-1", "--node-ip", given},
			io.Discard,
		)
		if err == nil || !strings.Contains(err.Error(), "--node-ip: ") {
			t.Errorf("%q: Parse() error = %v, want an error with %q", given, err, "--node-ip: ")
		}
	}
}
