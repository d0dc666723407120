package nodecmd

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestEveryServiceTakesTheFlagsThatItIsStartedWith, with everything that an operator can give; the way to the API server
// is told to those alone that go it.
func TestEveryServiceTakesTheFlagsThatItIsStartedWith(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("kind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{
		Kubeconfig: kubeconfig, RuntimeEndpoint: "unix:///run/containerd.sock", AllowedUIDs: "10241", HostnameOverride: "node-1",
		RootDir: filepath.Join(dir, "pods"), NodeIP: "198.51.100.7", NodeLabels: "a=b", StateDir: dir, Verbosity: 4,
	}
	for _, service := range layout.Services() {
		cfg, err := nodeconfig.Parse(service, opts.args(l, service), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", service, err)
			continue
		}
		want := ""
		if service != layout.PLEG {
			want = kubeconfig
		}
		if cfg.Kubeconfig != want {
			t.Errorf("%s has the kubeconfig %q, want %q", service, cfg.Kubeconfig, want)
		}
	}
}
