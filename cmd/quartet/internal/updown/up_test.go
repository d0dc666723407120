package updown

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/quartet-node/quartet/cmd/quartet/internal/nodecmd"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/peertls"
)

// up passes host privileges on, to the node in the foreground and in the background.
func TestUpPassesHostPrivilegesOn(t *testing.T) {
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &node{layout: l}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	n.opts.hostPrivileges.Add(flags)
	want := []string{"--host-network-sources=", "--privileged-sources=file"}
	if err := flags.Parse(want); err != nil {
		t.Fatal(err)
	}
	args := n.foregroundArgs()
	if got := args[len(args)-2:]; !slices.Equal(got, want) {
		t.Errorf("in the background it is told %q, want %q", got, want)
	}
	options := n.nodeOptions()
	if got := options.HostPrivileges.Args(); !slices.Equal(got, want) {
		t.Errorf("in the foreground it is told %q, want %q", got, want)
	}
}

// up passes credential providers on, too, with absolute paths for the background.
func TestUpPassesCredentialProvidersOn(t *testing.T) {
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &node{layout: l}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	n.opts.credentialProviders.Add(flags)
	want := []string{"--image-credential-provider-config=/c.yaml", "--image-credential-provider-bin-dir=/bin"}
	if err := flags.Parse(want); err != nil {
		t.Fatal(err)
	}
	args := n.foregroundArgs()
	if got := args[len(args)-2:]; !slices.Equal(got, want) {
		t.Errorf("in the background it is told %q, want %q", got, want)
	}
	options := n.nodeOptions()
	if got := options.CredentialProviders.Args(); !slices.Equal(got, want) {
		t.Errorf("in the foreground it is told %q, want %q", got, want)
	}
	cmd := UpCommand()
	cmd.SetArgs([]string{"--state-dir", t.TempDir(), "--image-credential-provider-bin-dir", "plugins"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SilenceUsage = true
	if err := cmd.ExecuteContext(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "needs --image-credential-provider-config") {
		t.Errorf("ExecuteContext() error = %v, want an error with %q", err, "needs --image-credential-provider-config")
	}
}

// up passes on what is served for other machines, too.
func TestUpPassesTheNetworkOn(t *testing.T) {
	args := []string{
		"--tls-listen=pleg=:7442,syncloop=[::1]:7443", "--tls-cert=/node.crt", "--tls-key=/node.key", "--tls-ca=/ca.crt",
		"--observe-names=laptop,desk", "--allowed-names=admin",
	}
	want := nodecmd.NetworkFlags{
		Listen:       map[string]string{"pleg": ":7442", "syncloop": "[::1]:7443"},
		Files:        peertls.Files{Cert: "/node.crt", Key: "/node.key", CA: "/ca.crt"},
		AllowedNames: "admin", ObserveNames: "laptop,desk",
	}
	passesOn(t, args, want, func(o nodecmd.Options) nodecmd.NetworkFlags { return o.Network })
}

func TestUpPassesOnWhatTheNodeIs(t *testing.T) {
	args := []string{
		"--allowed-uids=10241,10242", "--hostname-override=edge-7", "--node-ip=198.51.100.7", "--node-labels=a=b,c=d",
	}
	want := nodecmd.NodeFlags{
		AllowedUIDs: "10241,10242", HostnameOverride: "edge-7", NodeIP: "198.51.100.7", NodeLabels: "a=b,c=d",
	}
	passesOn(t, args, want, func(o nodecmd.Options) nodecmd.NodeFlags { return o.NodeFlags })
}

// passesOn checks what a node is told by the arguments of up, in the foreground and in the background.
func passesOn[F any](t *testing.T, args []string, want F, told func(nodecmd.Options) F) {
	t.Helper()
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &node{layout: l}
	if err := n.opts.flagSet().Parse(args); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, told(n.nodeOptions())); diff != "" {
		t.Errorf("in the foreground (-want +got):\n%s", diff)
	}
	var background upOptions
	if err := background.flagSet().Parse(n.foregroundArgs()[1:]); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, told((&node{layout: l, opts: background}).nodeOptions())); diff != "" {
		t.Errorf("in the background (-want +got):\n%s", diff)
	}
}

func TestUpRefusesSourcesThatDoNotExistBeforeItStartsAnything(t *testing.T) {
	cmd := UpCommand()
	cmd.SetArgs([]string{"--state-dir", t.TempDir(), "--host-pid-sources", "files"})
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SilenceUsage = true
	const want = `the configuration is wrong: --host-pid-sources: "files" is no source of pods: name file, http, api, local, separated by commas, or * for all`
	if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A node starts with the operator's file and remains separate: the file does not set its runtime and its cgroups.
func TestUpBeginsWithAFileAndKeepsWhatItsRuntimeNeeds(t *testing.T) {
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	const given = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDomain: cluster.local
fileCheckFrequency: 5s
cgroupRoot: /elsewhere
readOnlyPort: 10255
`
	if err := os.WriteFile(file, []byte(given), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeConfig(l, file, ownFields{manifests: l.Manifests(), readOnlyPort: 11255}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(l.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"clusterDomain: cluster.local\n", "fileCheckFrequency: 5s\n",
		"cgroupRoot: " + l.CgroupRoot() + "\n", "readOnlyPort: 11255\n", "staticPodPath: " + l.Manifests() + "\n",
	} {
		if !strings.Contains(string(content), want) {
			t.Errorf("the configuration lacks %q:\n%s", want, content)
		}
	}
	if strings.Contains(string(content), "address:") {
		t.Errorf("the configuration has an address, where the API server may not reach the node:\n%s", content)
	}
}

func TestUpLeavesTheHealthPortToTheFileUnlessItsFlagIsGiven(t *testing.T) {
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		given string
		args  []string
		want  string
	}{
		{"healthzPort: 12248\n", nil, "healthzPort: 12248\n"},
		{"healthzPort: 12248\n", []string{"--healthz-port=0"}, "healthzPort: 0\n"},
		{"", []string{"--healthz-port=13248"}, "healthzPort: 13248\n"},
		{"", nil, ""},
	} {
		var opts upOptions
		flags := opts.flagSet()
		if err := flags.Parse(test.args); err != nil {
			t.Fatal(err)
		}
		opts.healthzPortGiven = flags.Changed(healthzPortFlag)
		config, err := kubeletConfig(l, []byte(test.given), opts.ownFields())
		if err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(config, "healthzPort"); has != (test.want != "") || !strings.Contains(config, test.want) {
			t.Errorf("%q with %q: want %q in\n%s", test.given, test.args, test.want, config)
		}
		if again := slices.Contains(
			(&node{opts: opts, layout: l}).foregroundArgs(),
			"--healthz-port="+strconv.Itoa(int(opts.healthzPort)),
		); again != opts.healthzPortGiven {
			t.Errorf("%q: the node in the background is given the port: %v", test.args, again)
		}
	}
}

func TestUpRefusesAFileThatIsNoConfiguration(t *testing.T) {
	l, err := layout.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{
		"kind: Pod\n": "the file of --config is a Pod: it must be a KubeletConfiguration (kubelet.config.k8s.io/v1beta1)",
		"- a\n":       "reading the file of --config: ",
	} {
		if _, err := kubeletConfig(
			l,
			[]byte(given),
			ownFields{manifests: l.Manifests()},
		); err == nil ||
			!strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", given, err, want)
		}
	}
	if err := writeConfig(
		l,
		"/no/such/file",
		ownFields{manifests: l.Manifests()},
	); err == nil ||
		!strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("a file that is not there: %v", err)
	}
}
