package target

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/fakesite"
	"github.com/quartet-node/quartet/test/harness"
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

// TestTheConfigmuxOfASiteIsReachedAsTheNodesSyncloopReachesIt: the node has no configmux of its own.
func TestTheConfigmuxOfASiteIsReachedAsTheNodesSyncloopReachesIt(t *testing.T) {
	site := fakesite.Serve(t, &configv1.UnimplementedConfigServiceServer{})
	dir := harness.ShortDir(t)
	site.FollowedBy(t, dir)
	n := Node{StateDir: dir}
	conn, err := n.Connect(t.Context(), layout.ConfigMux)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Serving(t.Context(), conn), conn.Close()); err != nil {
		t.Error(err)
	}
	if got, err := n.Address(layout.ConfigMux); err != nil || got != site.Address {
		t.Errorf("Address() = %q, %v, want %q", got, err, site.Address)
	}
	other := Node{StateDir: dir}
	other.At(layout.ConfigMux, "unix:///s/configmux.sock")
	if got, err := other.Address(layout.ConfigMux); err != nil || got != "unix:///s/configmux.sock" {
		t.Errorf("Address() = %q, %v, want that of the flag", got, err)
	}
	if err := os.Remove(site.Node.Key); err != nil {
		t.Fatal(err)
	}
	_, err = n.Connect(t.Context(), layout.ConfigMux)
	for _, want := range []string{
		"configmux at " + site.Address, site.Node.Key, "as root", "--configmux-address, --tls-cert, --tls-key and --tls-ca",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Connect() error = %v, want an error with %q", err, want)
		}
	}
}
