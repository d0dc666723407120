package nodecmd

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/test/authority"
)

// TestPodsComeFromAConfigmuxElsewhere: none is started, and syncloop alone gets its address and the files of TLS.
func TestPodsComeFromAConfigmuxElsewhere(t *testing.T) {
	dir := t.TempDir()
	files := authority.New(t, "ca").Issue(t, dir, authority.Request{Name: "node-1"})
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := ConfigmuxFlags{Address: "configmux.example:7441", Objects: true}
	var got ConfigmuxFlags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	got.Add(flags)
	if err := flags.Parse(want.Args()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("kind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := Options{
		StateDir: dir, NodeFlags: node1, Kubeconfig: kubeconfig, Configmux: got, Network: NetworkFlags{Files: files},
	}
	if got := opts.Configmux.Services(); slices.Contains(got, layout.ConfigMux) || len(got) != 3 {
		t.Errorf("%v are started, want all but configmux", got)
	}
	for _, service := range opts.Configmux.Services() {
		cfg, err := nodeconfig.Parse(service, opts.args(l, service), io.Discard)
		if err != nil {
			t.Fatalf("%s: %v", service, err)
		}
		address, tls := l.Address(layout.ConfigMux), peertls.Files{}
		if service == layout.SyncLoop {
			address, tls = want.Address, files
		}
		if cfg.Peers.ConfigMux != address || cfg.TLS != tls || cfg.ConfigmuxObjects != (service == layout.SyncLoop) {
			t.Errorf("%s calls %s with %+v, objects %t", service, cfg.Peers.ConfigMux, cfg.TLS, cfg.ConfigmuxObjects)
		}
	}
	if err := opts.Check(); err != nil && !strings.Contains(err.Error(), "failSwapOn") {
		t.Errorf("Check() = %v", err)
	}
}

// TestNoFlagOfAConfigmuxElsewhereIsWithoutEffect: the error says what is missing.
func TestNoFlagOfAConfigmuxElsewhereIsWithoutEffect(t *testing.T) {
	files := authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "node-1"})
	elsewhere := ConfigmuxFlags{Address: "configmux.example:7441"}
	for want, opts := range map[string]Options{
		"--configmux-objects: a configmux of this node serves no site": {Configmux: ConfigmuxFlags{Objects: true}},
		"--tls-cert, --tls-key, --tls-ca: nothing is on the network":   {Network: NetworkFlags{Files: files}},
		"--configmux-address: nothing is on the network without TLS":   {Configmux: elsewhere},
		"--tls-listen: no configmux is started": {
			Configmux: elsewhere,
			Network:   NetworkFlags{Files: files, Listen: map[string]string{"configmux": ":7441"}, ObserveNames: "laptop"},
		},
		"--part-program: no configmux is started": {
			Configmux: elsewhere, Network: NetworkFlags{Files: files},
			Programs: ProgramFlags{Parts: map[string]string{"configmux": "/bin/sh"}},
		},
	} {
		opts.StateDir, opts.HostnameOverride = t.TempDir(), "node-1"
		if err := opts.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() = %v, want %q", err, want)
		}
	}
}
