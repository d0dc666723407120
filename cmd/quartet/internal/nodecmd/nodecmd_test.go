package nodecmd

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/cmd/internal/supervisor"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/test/authority"
)

var node1 = NodeFlags{HostnameOverride: "node-1"}

// TestEveryServiceTakesTheFlagsThatItIsStartedWith, with all options of an operator; only the clients of the API server
// get its flags.
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
		Kubeconfig:      kubeconfig,
		RuntimeEndpoint: "unix:///run/containerd.sock",
		NodeFlags: NodeFlags{
			AllowedUIDs: "10241", HostnameOverride: "node-1", NodeIP: "198.51.100.7", NodeLabels: "a=b",
		},
		RootDir:  filepath.Join(dir, "pods"),
		StateDir: dir,
		Log:      LogFlags{Verbosity: 4, Parts: map[string]int{"pleg": 0}, Format: nodeconfig.LogJSON},
		CredentialProviders: nodeconfig.CredentialProviderFlags{
			Config: filepath.Join(dir, "providers.yaml"),
			BinDir: dir,
		},
		AllowUnauthenticatedAPI: true,
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
		if has := cfg.CredentialProviders == opts.CredentialProviders; has != (service == layout.SyncLoop) {
			t.Errorf("%s has the credential providers %+v, want has %v",
				service, cfg.CredentialProviders, service == layout.SyncLoop)
		}
		wantVerbosity := 4
		if service == layout.PLEG {
			wantVerbosity = 0
		}
		if logging := cfg.Logging(); !logging.JSON || logging.Verbosity != wantVerbosity {
			t.Errorf("%s logs as %+v, want JSON with the verbosity %d", service, logging, wantVerbosity)
		}
		if cfg.AllowUnauthenticatedAPI != (service == layout.SyncLoop) {
			t.Errorf("%s may serve everybody: %v, want %v", service, cfg.AllowUnauthenticatedAPI, service == layout.SyncLoop)
		}
	}
}

// TestTheFlagsOfLogsArePassedOn: `quartet up --detach` starts itself with the same flags.
func TestTheFlagsOfLogsArePassedOn(t *testing.T) {
	want := LogFlags{Verbosity: 2, Parts: map[string]int{"pleg": 0, "syncloop": 4}, Format: "json"}
	var got LogFlags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	got.Add(flags)
	if err := flags.Parse(want.Args()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	opts := Options{StateDir: t.TempDir(), NodeFlags: node1, Log: LogFlags{Parts: map[string]int{"kubelet": 4}}}
	if err := opts.Check(); err == nil || !strings.Contains(err.Error(), `--part-verbosity: "kubelet" must be `) {
		t.Errorf("Check() error = %v", err)
	}
}

// TestAServiceIsReplacedByAProgram: it gets the flags of the service, and those that every part needs.
func TestAServiceIsReplacedByAProgram(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "my-pleg")
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	want := ProgramFlags{Parts: map[string]string{"pleg": program}}
	var got ProgramFlags
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	got.Add(flags)
	if err := errors.Join(flags.Parse(want.Args()), got.Absolute()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	opts := Options{StateDir: dir, NodeFlags: node1, RuntimeEndpoint: "unix:///run/cri.sock", Programs: got}
	l, err := layout.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := opts.complete(l)
	part := partOf(t, plan, layout.PLEG)
	if part.Path != program || !part.Foreign || part.Args[0] != "--listen="+l.Address(layout.PLEG) ||
		part.Args[1] != "--container-runtime-endpoint=unix:///run/cri.sock" ||
		!slices.Contains(part.Args, "--state-dir="+dir) {
		t.Errorf("the part is %+v", part)
	}
	// This program has no services beside it.
	if part := partOf(t, plan, layout.SyncLoop); part.Foreign || err == nil ||
		!strings.Contains(err.Error(), "syncloop is neither") || strings.Contains(err.Error(), "pleg is neither") {
		t.Errorf("the part is %+v, and the error %v", part, err)
	}
	for name, wrong := range map[string]ProgramFlags{
		"must be configmux":           {Parts: map[string]string{"kubelet": program}},
		"no such file":                {Parts: map[string]string{"pleg": program + "x"}},
		"not a file that may be exec": {Parts: map[string]string{"pleg": dir}},
	} {
		opts.Programs = wrong
		if err := opts.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Check() error = %v, want one with %q", err, name)
		}
	}
}

// partOf returns a part of a plan.
func partOf(t *testing.T, plan supervisor.Plan, service layout.Service) supervisor.Part {
	t.Helper()
	i := slices.IndexFunc(plan.Parts, func(p supervisor.Part) bool { return p.Name == string(service) })
	if i < 0 {
		t.Fatalf("there is no %s in %+v", service, plan)
	}
	return plan.Parts[i]
}

// TestANodeWithoutItsPluginsIsNotStarted: one error, before anything starts.
func TestANodeWithoutItsPluginsIsNotStarted(t *testing.T) {
	dir := t.TempDir()
	opts := Options{
		NodeFlags:           NodeFlags{HostnameOverride: "node-1"},
		StateDir:            dir,
		CredentialProviders: nodeconfig.CredentialProviderFlags{Config: filepath.Join(dir, "providers.yaml"), BinDir: dir},
	}
	err := Run(t.Context(), opts, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "--image-credential-provider-config: ") {
		t.Errorf("Run() error = %v, want an error with %q", err, "--image-credential-provider-config: ")
	}
	if _, err := os.Stat(filepath.Join(dir, "run")); err == nil {
		t.Error("something was begun")
	}
}

// TestServicesAreServedOnTheNetworkOneByOne, with the files and names for all of them.
func TestServicesAreServedOnTheNetworkOneByOne(t *testing.T) {
	files := authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "node-1"})
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Network: NetworkFlags{
		Listen: map[string]string{"pleg": ":7442"}, Files: files, ObserveNames: "laptop",
	}}
	for _, service := range layout.Services() {
		cfg, err := nodeconfig.Parse(service, opts.args(l, service), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if service == layout.PLEG {
			want = ":7442"
		}
		if cfg.Network.Address != want || cfg.Listen != l.Address(service) {
			t.Errorf("%s is served at %s and %q, want %s and %q", service, cfg.Listen, cfg.Network.Address, l.Address(service), want)
		}
	}
	opts.StateDir = l.StateDir()
	for want, network := range map[string]NetworkFlags{
		`--tls-listen: "kubelet" must be `: {Listen: map[string]string{"kubelet": ":7442"}},
		"nothing is served on the network": {ObserveNames: "laptop"},
		"give --tls-cert, --tls-key":       {Listen: map[string]string{"pleg": ":7442"}, ObserveNames: "laptop"},
	} {
		opts.Network = network
		if err := opts.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check() = %v, want %q", err, want)
		}
	}
}
