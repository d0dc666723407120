package nodeconfig

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quartet-node/quartet/internal/sockets"
)

// TestWhichNodesHaveTheAuthenticatedAPI: nodes of a cluster with authentication, and standalone nodes only with
// authentication and the authorization mode AlwaysAllow.
func TestWhichNodesHaveTheAuthenticatedAPI(t *testing.T) {
	for _, c := range []struct {
		text   string
		member bool
		want   string
	}{
		{"", false, "a standalone node has no API server"},
		{"", true, ""},
		{"enableServer: false", true, "enableServer is false"},
		{"authentication: {x509: {clientCAFile: ca.crt}}", false, "a standalone node has no API server"},
		{"authorization: {mode: AlwaysAllow}", false, "no client could be authenticated"},
		{"authorization: {mode: AlwaysAllow}\nauthentication: {x509: {clientCAFile: ca.crt}}", false, ""},
		{"authorization: {mode: AlwaysAllow}\nauthentication: {anonymous: {enabled: true}}", false, ""},
		{"authorization: {mode: AlwaysAllow}\nauthentication: {x509: {clientCAFile: ca.crt}}\nserverTLSBootstrap: true", false, "serverTLSBootstrap needs an API server"},
		{"authentication: {webhook: {enabled: false}}", true, "no client could be authenticated"},
		{"authentication: {webhook: {enabled: false}, x509: {clientCAFile: ca.crt}}\nserverTLSBootstrap: true", true, ""},
	} {
		cfg := parsedAs(t, SyncLoop, c.text, c.member)
		if got := cfg.WhyNoAPI(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q, of a cluster: %v: got %q, want %q", c.text, c.member, got, c.want)
		}
		if address := cfg.APISocket().Address; (address == "") != (c.want != "") {
			t.Errorf("%q, of a cluster: %v: the socket is at %q", c.text, c.member, address)
		}
	}
}

// parsedAs returns the configuration of a service with a file of the given text.
func parsedAs(t *testing.T, service Service, text string, member bool, args ...string) Config {
	t.Helper()
	dir := t.TempDir()
	file, kubeconfig := filepath.Join(dir, "kubelet.yaml"), filepath.Join(dir, "kubeconfig")
	for path, content := range map[string]string{file: "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + text, kubeconfig: "x"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args = append(args, "--hostname-override=node-1", "--config", file)
	if member {
		args = append(args, "--kubeconfig", kubeconfig)
	}
	cfg, err := Parse(service, args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestSocketsAreThoseOfTheConfiguration, also those that are turned off.
func TestSocketsAreThoseOfTheConfiguration(t *testing.T) {
	for _, c := range []struct {
		service Service
		text    string
		args    []string
		want    []sockets.Socket
	}{
		{SyncLoop, "", nil, []sockets.Socket{{Name: "metrics-listen"}, {Name: "tls-listen"}, {Name: "port", Address: "0.0.0.0:10250"}, {Name: "readOnlyPort"}}},
		{
			SyncLoop, "address: \"::1\"\nport: 11250\nreadOnlyPort: 11255", []string{"--metrics-listen=127.0.0.1:9101"},
			[]sockets.Socket{{Name: "metrics-listen", Address: "127.0.0.1:9101"}, {Name: "tls-listen"}, {Name: "port", Address: "[::1]:11250"}, {Name: "readOnlyPort", Address: "[::1]:11255"}},
		},
		{SyncLoop, "enableServer: false", []string{"--metrics-listen=none"}, []sockets.Socket{{Name: "metrics-listen"}, {Name: "tls-listen"}, {Name: "port"}, {Name: "readOnlyPort"}}},
		{NodeStatus, "", nil, []sockets.Socket{{Name: "metrics-listen"}, {Name: "tls-listen"}, {Name: "healthzPort", Address: "127.0.0.1:10248"}}},
		{NodeStatus, "healthzPort: 0", nil, []sockets.Socket{{Name: "metrics-listen"}, {Name: "tls-listen"}, {Name: "healthzPort"}}},
		{ConfigMux, "", nil, []sockets.Socket{{Name: "metrics-listen"}, {Name: "tls-listen"}}},
	} {
		cfg := parsedAs(t, c.service, c.text, true, c.args...)
		if diff := cmp.Diff(c.want, cfg.TCPSockets(c.service)); diff != "" {
			t.Errorf("%s %q %q: %s", c.service, c.text, c.args, diff)
		}
	}
}
