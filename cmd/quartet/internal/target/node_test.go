package target

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
)

// TestCommandsShareANode: the flags of each of them count.
func TestCommandsShareANode(t *testing.T) {
	t.Setenv("QUARTET_PLEG_ADDRESS", "node-1:7442")
	var n Node
	one, two := pflag.NewFlagSet("one", pflag.ContinueOnError), pflag.NewFlagSet("two", pflag.ContinueOnError)
	n.AddFlags(one)
	n.AddFlags(two)
	if err := one.Parse([]string{"--syncloop-address=node-1:7443", "--state-dir=/s", "--tls-cert=/c"}); err != nil {
		t.Fatal(err)
	}
	for service, want := range map[layout.Service]string{
		layout.SyncLoop: "node-1:7443", layout.PLEG: "node-1:7442",
		layout.ConfigMux: "unix:///s/run/configmux/configmux.sock",
	} {
		if got, err := n.Address(service); err != nil || got != want {
			t.Errorf("Address(%s) = %q, %v, want %q", service, got, err, want)
		}
	}
	if n.tls.Cert != "/c" {
		t.Errorf("the certificate is %q", n.tls.Cert)
	}
}
