package nodeconfig_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

func TestANodeJoinsWithAFileOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	bootstrap, kubeconfig := filepath.Join(dir, "bootstrap"), filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(bootstrap, []byte("kind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := nodeconfig.Parse(
		nodeconfig.NodeStatus,
		[]string{
			"--hostname-override=node-1",
			"--state-dir",
			dir,
			"--kubeconfig",
			kubeconfig,
			"--bootstrap-kubeconfig",
			bootstrap,
		},
		io.Discard,
	)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.BootstrapKubeconfig != bootstrap || cfg.Kubeconfig != kubeconfig || !cfg.AwaitKubeconfig ||
		cfg.CertDir != filepath.Join(dir, "pki") {
		t.Errorf("cfg.BootstrapKubeconfig = %q, %q, %v, %q, want %q, %q, true and %q",
			cfg.BootstrapKubeconfig, cfg.Kubeconfig, cfg.AwaitKubeconfig, cfg.CertDir, bootstrap, kubeconfig,
			filepath.Join(dir, "pki"))
	}
	for _, service := range []nodeconfig.Service{nodeconfig.ConfigMux, nodeconfig.SyncLoop} {
		cfg, err := nodeconfig.Parse(
			service,
			[]string{"--hostname-override=node-1", "--kubeconfig", kubeconfig, "--await-kubeconfig"},
			io.Discard,
		)
		if err != nil || !cfg.AwaitKubeconfig || cfg.Kubeconfig != kubeconfig {
			t.Errorf("%s: cfg.Kubeconfig = %q, %v, %v, want true and %q",
				service, cfg.Kubeconfig, cfg.AwaitKubeconfig, err, kubeconfig)
		}
	}
}

func TestProblemsOfJoiningAreReportedWithARemedy(t *testing.T) {
	for name, c := range map[string]struct {
		service nodeconfig.Service
		args    []string
		want    string
	}{
		"no kubeconfig":        {nodeconfig.ConfigMux, []string{"--await-kubeconfig"}, "--await-kubeconfig: needs --kubeconfig"},
		"not awaited":          {nodeconfig.ConfigMux, []string{"--kubeconfig=/none/there"}, "--kubeconfig: open /none/there: no such file or directory: name a file that exists"},
		"no bootstrap file":    {nodeconfig.NodeStatus, []string{"--kubeconfig=/none/there", "--bootstrap-kubeconfig=/none/here"}, "--bootstrap-kubeconfig: open /none/here: no such file or directory: name a file"},
		"no path for the file": {nodeconfig.NodeStatus, []string{"--bootstrap-kubeconfig=/dev/null"}, "--bootstrap-kubeconfig: needs --kubeconfig"},
		"relative directory":   {nodeconfig.NodeStatus, []string{"--cert-dir=pki"}, `--cert-dir: "pki" must be an absolute path`},
	} {
		_, err := nodeconfig.Parse(c.service, append(c.args, "--hostname-override=node-1"), io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// TestANodeThatHasJoinedNeedsNoBootstrapFile: kubeadm removes it.
func TestANodeThatHasJoinedNeedsNoBootstrapFile(t *testing.T) {
	dir := t.TempDir()
	bootstrap, kubeconfig := filepath.Join(dir, "bootstrap"), filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("kind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := nodeconfig.Parse(
		nodeconfig.NodeStatus,
		[]string{"--hostname-override=node-1", "--kubeconfig", kubeconfig, "--bootstrap-kubeconfig", bootstrap},
		io.Discard,
	)
	if err != nil || cfg.BootstrapKubeconfig != bootstrap {
		t.Errorf("cfg.BootstrapKubeconfig = %q, %v, want %q", cfg.BootstrapKubeconfig, err, bootstrap)
	}
}
