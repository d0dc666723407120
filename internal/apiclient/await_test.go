package apiclient_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
	if got := client.Server(); got != kubeconfig {
		t.Errorf("the server is shown as %s, want %s", got, kubeconfig)
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
	if got := client.Server(); got != url {
		t.Errorf("the server is then shown as %s, want %s", got, url)
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

func TestTheServerIsThatOfTheKubeconfig(t *testing.T) {
	for server, want := range map[string]string{
		"https://api.example:6443":         "https://api.example:6443",
		"https://api.example/clusters/c1/": "https://api.example/clusters/c1",
	} {
		client, err := apiclient.New(apiclient.Config{
			Kubeconfig: write(t, "server: '"+server+"', insecure-skip-tls-verify: true", "token: "+secret),
			Service:    nodeconfig.ConfigMux, ContentType: "application/json",
		})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if got := client.Server(); got != want {
			t.Errorf("%s is shown as %s, want %s", server, got, want)
		}
	}
}

// TestAKubeconfigOnAFailingDiskIsReadAgain: a node goes on from its checkpoint while the disk does not give the file.
// That is so for the file itself and for one that it names.
func TestAKubeconfigOnAFailingDiskIsReadAgain(t *testing.T) {
	const broken = "/proc/self/mem" // of which no read at offset 0 succeeds
	url, dir, _ := server(t)
	for _, name := range []string{"the kubeconfig", "the authority"} {
		t.Run(name, func(t *testing.T) {
			failing := filepath.Join(t.TempDir(), "failing")
			good, file, ca := dir+"/ca.crt", failing, dir+"/ca.crt"
			if name == "the authority" {
				ca = failing
			}
			written := write(t, "server: '"+url+"', certificate-authority: "+ca, "token: "+secret)
			if name == "the authority" {
				file = written
			} else {
				good = written
			}
			if err := os.Symlink(broken, failing); err != nil {
				t.Fatal(err)
			}
			client, err := apiclient.New(apiclient.Config{
				Kubeconfig: file, Service: nodeconfig.ConfigMux, ContentType: "application/json",
			})
			if err != nil {
				t.Fatalf("a failing disk ends the process: %v", err)
			}
			defer client.Close()
			get := func() error {
				return client.Core.Get().Resource("nodes").Name("node-1").Do(t.Context()).Into(&v1.Node{})
			}
			err = get()
			if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), failing) ||
				!strings.Contains(err.Error(), "check its disk") {
				t.Errorf("got %v, want an I/O error of %s and what to do", err, failing)
			}
			if err := errors.Join(os.Remove(failing), os.Symlink(good, failing)); err != nil {
				t.Fatal(err)
			}
			if err := get(); err != nil {
				t.Errorf("with a well disk: %v", err)
			}
		})
	}
}
