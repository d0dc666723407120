package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestWhichNodesHaveTheAuthenticatedAPI: those of a cluster, and others only when their file names who may do everything.
func TestWhichNodesHaveTheAuthenticatedAPI(t *testing.T) {
	dir := t.TempDir()
	file, kubeconfig := filepath.Join(dir, "kubelet.yaml"), filepath.Join(dir, "kubeconfig")
	noError(t, os.WriteFile(kubeconfig, []byte("x"), 0o600))
	for _, c := range []struct {
		text   string
		member bool
		want   string
	}{
		{"", false, "a node without an API server can ask nobody"},
		{"", true, ""},
		{"enableServer: false", true, "enableServer is false"},
		{"authentication: {x509: {clientCAFile: ca.crt}}", false, "a node without an API server can ask nobody"},
		{"authorization: {mode: AlwaysAllow}", false, "nobody could show who they are"},
		{"authorization: {mode: AlwaysAllow}\nauthentication: {x509: {clientCAFile: ca.crt}}", false, ""},
		{"authorization: {mode: AlwaysAllow}\nauthentication: {anonymous: {enabled: true}}", false, ""},
		{"authorization: {mode: AlwaysAllow}\nauthentication: {x509: {clientCAFile: ca.crt}}\nserverTLSBootstrap: true", false, "serverTLSBootstrap needs an API server"},
		{"authentication: {webhook: {enabled: false}}", true, "nobody could show who they are"},
		{"authentication: {webhook: {enabled: false}, x509: {clientCAFile: ca.crt}}\nserverTLSBootstrap: true", true, ""},
	} {
		noError(t, os.WriteFile(file, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"+c.text), 0o600))
		args := []string{"--hostname-override=node-1", "--config", file}
		if c.member {
			args = append(args, "--kubeconfig", kubeconfig)
		}
		cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, args, io.Discard)
		noError(t, err)
		if got := whyNoAPI(&cfg); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%q, of a cluster: %v: got %q, want %q", c.text, c.member, got, c.want)
		}
	}
}

func TestTheServingCertificateIsOfTheNodeAtItsAddresses(t *testing.T) {
	request := requestOf("node-1", []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: "192.0.2.1"}, {Type: v1.NodeHostName, Address: "node-1"}, {Type: v1.NodeInternalDNS, Address: "node-1.example"},
		{Type: v1.NodeInternalDNS, Address: "node-1.example"}, {Type: v1.NodeExternalIP, Address: "2001:db8::1"}, {Type: v1.NodeInternalIP, Address: "not an address"},
	})
	if request.Subject.String() != "CN=system:node:node-1,O=system:nodes" || strings.Join(request.DNSNames, " ") != "node-1 node-1.example" || len(request.IPAddresses) != 2 {
		t.Errorf("got %s, %v, %v", request.Subject, request.DNSNames, request.IPAddresses)
	}
	if requestOf("node-1", []v1.NodeAddress{{Type: v1.NodeHostName, Address: "node-1"}}) != nil {
		t.Error("a request that no signer would sign")
	}
}
