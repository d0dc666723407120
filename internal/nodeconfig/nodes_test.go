package nodeconfig

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/quartet-node/quartet/test/authority"
)

// siteFlags returns the flags that --nodes needs.
func siteFlags(t *testing.T) []string {
	t.Helper()
	files := authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "configmux"})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{
		"--tls-cert=" + files.Cert, "--tls-key=" + files.Key, "--tls-ca=" + files.CA, "--tls-listen=:7441",
		"--kubeconfig=" + kubeconfig,
	}
}

func TestTheNodesOfASite(t *testing.T) {
	needed := siteFlags(t)
	for value, want := range map[string]Nodes{
		"all":                   {All: true},
		"node-1":                {Names: []string{"node-1"}},
		"b.example, a,a":        {Names: []string{"a", "b.example"}},
		"site=berlin":           {Selector: "site=berlin"},
		"site in (paris, rome)": {Selector: "site in (paris,rome)"},
		"edge,site!=x":          {Selector: "edge,site!=x"},
		"!cloud":                {Selector: "!cloud"},
	} {
		cfg := parse(t, ConfigMux, append([]string{"--nodes=" + value}, needed...)...)
		if diff := cmp.Diff(want, cfg.Nodes); diff != "" || !cfg.Nodes.Given() || !cfg.Network.Nodes {
			t.Errorf("--nodes=%s (-want +got): %s; network %v", value, diff, cfg.Network)
		}
	}
	if cfg := parse(t, ConfigMux); cfg.Nodes.Given() || cfg.Network.Nodes {
		t.Errorf("without the flag: %v", cfg.Nodes)
	}
}

func TestWhatASiteNeeds(t *testing.T) {
	needed := siteFlags(t)
	static := filepath.Join(t.TempDir(), "kubelet.yaml")
	err := os.WriteFile(static, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+
		"staticPodPath: /etc/kubernetes/manifests\nstaticPodURL: http://127.0.0.1/pods\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"--nodes=all"}, []string{"--nodes: ", "give --kubeconfig", "give --tls-listen"}},
		{append([]string{"--nodes="}, needed...), []string{"--nodes: ", "cannot name a node", "must be all"}},
		{append([]string{"--nodes=A"}, needed...), []string{`"A" cannot name a node`}},
		{append([]string{"--nodes=a=b=c"}, needed...), []string{"--nodes: ", "site=berlin"}},
		{append([]string{"--nodes=all", "--config=" + static}, needed...), []string{"staticPodPath: ", "staticPodURL: ", "with --nodes"}},
		{
			append([]string{"--nodes=all", "--apply-names=a", "--secret-uids=1", "--replay=/f"}, needed...),
			[]string{"--apply-names: ", "--secret-uids: ", "--replay: ", "is for the configmux of one node"},
		},
	} {
		_, err := Parse(ConfigMux, tc.args, io.Discard)
		for _, want := range tc.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", tc.args, err, want)
			}
		}
	}
	if _, err := Parse(PLEG, []string{"--nodes=all"}, io.Discard); err == nil {
		t.Error("pleg takes --nodes")
	}
}

// TestObjectsOfConfigmux: a node with an API server may have its config maps and secrets from configmux; without one it
// always has.
func TestObjectsOfConfigmux(t *testing.T) {
	kubeconfig := siteFlags(t)[4]
	if cfg := parse(t, SyncLoop, "--configmux-objects", kubeconfig); !cfg.ConfigmuxObjects {
		t.Error("the flag has no effect")
	}
	if _, err := Parse(SyncLoop, []string{"--configmux-objects"}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "--configmux-objects: ") {
		t.Errorf("without --kubeconfig: %v", err)
	}
}

// FuzzNodes: a value gives names that nodes can have, or a selector that says the same when it is parsed again, or a
// problem.
func FuzzNodes(f *testing.F) {
	for _, seed := range []string{"all", "a,b", "site=berlin", "!x", "a in (b,c)", ",", "a b", "=", "x>1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		nodes, problem := parseNodes(value)
		if (problem == "") != nodes.Given() {
			t.Fatalf("%q: %v, problem %q", value, nodes, problem)
		}
		for _, name := range nodes.Names {
			if len(validation.IsDNS1123Subdomain(name)) > 0 {
				t.Errorf("%q: the name %q", value, name)
			}
		}
		if nodes.Selector != "" {
			if again, err := labels.Parse(nodes.Selector); err != nil || again.String() != nodes.Selector {
				t.Errorf("%q: the selector %q, again %v, %v", value, nodes.Selector, again, err)
			}
		}
	})
}
