package apiclient_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestAKubeconfigThatIsAwaitedIsUsedWhenItIsThere checks that errors in it are reported when it exists.
func TestAKubeconfigThatIsAwaitedIsUsedWhenItIsThere(t *testing.T) {
	url, dir, requests := server(t)
	kubeconfig := filepath.Join(dir, "later")
	cfg := apiclient.Config{
		Kubeconfig:  kubeconfig,
		Await:       true,
		Service:     nodeconfig.ConfigMux,
		ContentType: "application/json",
	}
	client, err := apiclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	get := func() (*v1.Node, error) {
		var node v1.Node
		err := client.Core.Get().Resource("nodes").Name("node-1").Do(t.Context()).Into(&node)
		return &node, err
	}
	if _, err := get(); !errors.Is(err, apiclient.ErrNotJoined) || !strings.Contains(err.Error(), kubeconfig) {
		t.Fatalf("got %v, want that the node has not joined", err)
	}
	if err := os.WriteFile(
		kubeconfig,
		[]byte("kind: Config\napiVersion: v1\ncurrent-context: none\n"),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	if _, err := get(); err == nil || !strings.Contains(err.Error(), `there is no context "none"`) {
		t.Fatalf("got %v, want what is wrong with the file", err)
	}
	written := write(t, "server: '"+url+"', certificate-authority: "+dir+"/ca.crt", "token: "+secret)
	if err := os.Rename(written, kubeconfig); err != nil {
		t.Fatal(err)
	}
	node, err := get()
	if err != nil || node.Name != "node-1" {
		t.Fatalf("got the Node %q, %v, want %q", node.Name, err, "node-1")
	}
	var r *http.Request
	if r = <-requests; r.Header.Get("Authorization") != "Bearer "+secret || r.URL.Path != "/api/v1/nodes/node-1" ||
		!strings.HasPrefix(r.UserAgent(), "quartet-configmux/") {
		t.Errorf("asked for %s as %s with %v", r.URL, r.UserAgent(), r.Header)
	}
	cfg.Await, cfg.Kubeconfig = false, kubeconfig+"-missing"
	if _, err := apiclient.New(cfg); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v for a file that is not awaited, want that it is missing", err)
	}
}
