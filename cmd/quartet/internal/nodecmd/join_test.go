package nodecmd

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestANodeThatJoinsIsStartedBeforeItHas: nodestatus has the bootstrap file, and the others wait for the kubeconfig
// that nodestatus writes.
func TestANodeThatJoinsIsStartedBeforeItHas(t *testing.T) {
	dir := t.TempDir()
	bootstrap, kubeconfig := filepath.Join(dir, "bootstrap"), filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(bootstrap, []byte("kind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Kubeconfig: kubeconfig, BootstrapKubeconfig: bootstrap, NodeFlags: node1, StateDir: dir}
	for _, service := range layout.Services() {
		cfg, err := nodeconfig.Parse(service, opts.args(l, service), io.Discard)
		if err != nil {
			t.Errorf("%s: %v", service, err)
			continue
		}
		if want := service != layout.PLEG; cfg.AwaitKubeconfig != want {
			t.Errorf("%s waits for the kubeconfig: %v, want %v", service, cfg.AwaitKubeconfig, want)
		}
		if service == layout.NodeStatus && cfg.BootstrapKubeconfig != bootstrap {
			t.Errorf("nodestatus joins with %q", cfg.BootstrapKubeconfig)
		}
	}
}
