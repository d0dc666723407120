package apiclient_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

const (
	protobuf = "application/vnd.kubernetes.protobuf"
	secret   = "hunter2"
)

// write writes a kubeconfig with the lines of one cluster and one user.
func write(t *testing.T, cluster, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: here
contexts:
- name: here
  context: {cluster: one, user: node}
clusters:
- name: one
  cluster: {%s}
users:
- name: node
  user: {%s}
`, cluster, user)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// server returns an API server with one Node, in JSON, which reports each request. Its certificate is in the file
// ca.crt of the returned directory.
func server(t *testing.T) (url, dir string, requests <-chan *http.Request) {
	t.Helper()
	seen := make(chan *http.Request, 10)
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.Header().Set("Content-Type", "application/json")
		if _, err := io.WriteString(w, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1"}}`); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(api.Close)
	dir = t.TempDir()
	writePEM(t, filepath.Join(dir, "ca.crt"), "CERTIFICATE", api.Certificate().Raw)
	return api.URL, dir, seen
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pair writes a certificate and its key as NAME.crt and NAME.key.
func pair(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, filepath.Join(dir, name+".crt"), "CERTIFICATE", certificate)
	writePEM(t, filepath.Join(dir, name+".key"), "PRIVATE KEY", der)
}

func TestRequestsHaveAUserAgentAndAContentType(t *testing.T) {
	url, dir, requests := server(t)
	kubeconfig := write(t, "server: '"+url+"', certificate-authority: "+dir+"/ca.crt", "token: "+secret)
	for content, accept := range map[string]string{protobuf: protobuf + ",application/json", "application/json": "application/json"} {
		client, err := apiclient.New(
			apiclient.Config{Kubeconfig: kubeconfig, Service: nodeconfig.NodeStatus, QPS: 50, Burst: 100, ContentType: content},
		)
		if err != nil {
			t.Fatal(err)
		}
		var node v1.Node
		if err := client.Core.Get().Resource("nodes").Name("node-1").Do(t.Context()).Into(&node); err != nil {
			t.Fatal(err)
		}
		if node.Name != "node-1" {
			t.Errorf("got the Node %q, want %q", node.Name, "node-1")
		}
		r := <-requests
		if got := r.UserAgent(); !strings.HasPrefix(got, "quartet-nodestatus/") {
			t.Errorf("user agent %q, want text beginning with %q", got, "quartet-nodestatus/")
		}
		if got := r.Header.Get("Accept"); got != accept {
			t.Errorf("%s: accepts %q, want %q", content, got, accept)
		}
		if r.Header.Get("Authorization") != "Bearer "+secret {
			t.Error("the token does not come along")
		}
		if err := client.Core.Post().Resource("nodes").Body(&node).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		if got := (<-requests).Header.Get("Content-Type"); got != content {
			t.Errorf("sends %q, want %q", got, content)
		}
	}
}

func TestRequestsAreCounted(t *testing.T) {
	url, dir, _ := server(t)
	registry := prometheus.NewRegistry()
	counts := apiclient.NewMetrics(registry)
	for kubeconfig, code := range map[string]string{
		write(t, "server: '"+url+"', certificate-authority: "+dir+"/ca.crt", "token: "+secret): "200", write(t, "server: 'http://127.0.0.1:1'", "token: "+secret): "<error>",
	} {
		client, err := apiclient.New(
			apiclient.Config{Kubeconfig: kubeconfig, Service: nodeconfig.ConfigMux, QPS: -1, ContentType: "application/json"},
		)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		client.CountIn(counts)
		for range 2 {
			if err := client.Core.Get().
				MaxRetries(0).
				Resource("nodes").
				Name("node-1").
				Do(t.Context()).
				Error(); (err == nil) != (code == "200") {
				t.Errorf("want the code %s: %v", code, err)
			}
		}
		metricstest.Want(t, registry, 2, "rest_client_requests_total", "code", code, "method", "GET")
	}
	metricstest.Documented(t, registry, metricstest.APIRequests)
	metricstest.Want(
		t,
		registry,
		2,
		"rest_client_request_duration_seconds",
		"verb",
		"GET",
		"host",
		strings.TrimPrefix(url, "https://"),
	)
}

func TestAClosedClientLeavesNoConnection(t *testing.T) {
	closed := make(chan struct{}, 10)
	api := httptest.NewUnstartedServer(http.NotFoundHandler())
	api.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	api.Start()
	defer api.Close()
	client, err := apiclient.New(
		apiclient.Config{Kubeconfig: write(t, "server: '"+api.URL+"'", ""), Service: nodeconfig.ConfigMux},
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Core.Get().Resource("nodes").Name("node-1").Do(t.Context()).Error(); !apierrors.IsNotFound(err) {
		t.Fatalf("got %v, want that there is none", err)
	}
	client.Close()
	select {
	case <-closed:
	case <-time.After(60 * time.Second):
		t.Error("the connection is still open")
	}
}

func TestTheLimitsAreThoseOfTheConfiguration(t *testing.T) {
	kubeconfig := write(t, "server: 'https://api.example'", "token: a")
	cfg, err := nodeconfig.Parse(
		nodeconfig.ConfigMux,
		[]string{"--hostname-override=node-1", "--kubeconfig", kubeconfig},
		io.Discard,
	)
	if err != nil {
		t.Fatal(err)
	}
	way, err := apiclient.RESTConfig(apiclient.ConfigOf(nodeconfig.ConfigMux, cfg))
	if err != nil {
		t.Fatal(err)
	}
	if way.QPS != 50 || way.Burst != 100 || way.ContentType != protobuf ||
		!strings.HasPrefix(way.UserAgent, "quartet-configmux/") {
		t.Errorf("%v requests a second, %d at once, of %s by %s, want 50, 100, %s and beginning with %q",
			way.QPS, way.Burst, way.ContentType, way.UserAgent, protobuf, "quartet-configmux/")
	}
	for set, want := range map[int32]float32{50: 50, 0: 5} {
		client, err := apiclient.New(apiclient.Config{Kubeconfig: kubeconfig, Service: nodeconfig.ConfigMux, QPS: set})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		limiter := client.Core.GetRateLimiter()
		if limiter.QPS() != want || !limiter.TryAccept() {
			t.Errorf("with %d: %v requests a second, want %v and the first at once", set, limiter.QPS(), want)
		}
	}
}

// TestWhatIsLeftOnThisMachineNeedsNoTLS, and everything else does.
func TestWhatIsLeftOnThisMachineNeedsNoTLS(t *testing.T) {
	for server, want := range map[string]bool{
		"http://127.0.0.1:8080": true, "http://[::1]:8080": true, "http://localhost:8080": true, "https://api.example:6443/path": true,
		"http://198.51.100.1:8080": false, "http://api.example": false, "http://localhost.example": false,
		"api.example:6443": false, "127.0.0.1:8080": false, "https://": false, "": false,
	} {
		_, err := apiclient.RESTConfig(
			apiclient.Config{Kubeconfig: write(t, "server: '"+server+"'", "token: a"), Service: nodeconfig.ConfigMux},
		)
		if (err == nil) != want {
			t.Errorf("%q: RESTConfig() error = %v, want success: %t", server, err, want)
		}
		if err != nil &&
			(!strings.Contains(err.Error(), "clusters[one].server: ") || !strings.Contains(err.Error(), "https://")) {
			t.Errorf("%q: %v does not say which field and what to do", server, err)
		}
	}
}

func TestCertificatesInFilesAndInTheKubeconfig(t *testing.T) {
	dir := t.TempDir()
	pair(t, dir, "node")
	data := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(content)
	}
	const cluster = "server: 'https://api.example'"
	relative := write(t, cluster, "client-certificate: node.crt, client-key: node.key")
	for _, name := range []string{"node.crt", "node.key"} {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(filepath.Dir(relative), name)); err != nil {
			t.Fatal(err)
		}
	}
	dir = filepath.Dir(relative)
	inline := write(t, cluster, "client-certificate-data: "+data("node.crt")+", client-key-data: "+data("node.key"))
	for _, kubeconfig := range []string{relative, inline} {
		way, err := apiclient.RESTConfig(apiclient.Config{Kubeconfig: kubeconfig, Service: nodeconfig.ConfigMux})
		if err != nil {
			t.Errorf("RESTConfig() failed: %v", err)
			continue
		}
		// The names of files are kept instead of their content, so that a replaced certificate is used.
		if kubeconfig == relative && (way.CertFile != filepath.Join(dir, "node.crt") || len(way.CertData) > 0) {
			t.Errorf("the certificate is in %q", way.CertFile)
		}
	}
}

// TestConnectionsThatHangCanBeClosed checks that the next request uses another connection.
func TestConnectionsThatHangCanBeClosed(t *testing.T) {
	requests := make(chan struct{}, 10)
	var hang atomic.Bool
	hang.Store(true)
	end := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests <- struct{}{}
		if hang.Load() {
			<-end
		}
		w.Header().Set("Content-Type", "application/json")
		if _, err := io.WriteString(
			w,
			`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"node-1"}}`,
		); err != nil &&
			!hang.Load() {
			t.Error(err)
		}
	}))
	defer api.Close()
	defer close(end)
	client, err := apiclient.New(
		apiclient.Config{Kubeconfig: write(t, "server: '"+api.URL+"'", ""), Service: nodeconfig.NodeStatus, QPS: -1},
	)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	dates := make(chan apiclient.Exchange, 10)
	client.OnAnswer(func(e apiclient.Exchange) { dates <- e })
	if client.Coordination.GetRateLimiter() != nil {
		t.Error("the requests are limited")
	}
	get := func() (lease coordinationv1.Lease, err error) {
		err = client.Coordination.Get().
			Namespace("kube-node-lease").
			Resource("leases").
			Name("node-1").
			Do(t.Context()).
			Into(&lease)
		return lease, err
	}
	failed := make(chan error, 1)
	go func() {
		_, err := get()
		failed <- err
	}()
	<-requests
	hang.Store(false)
	client.CloseConnections()
	select {
	case err := <-failed:
		// client-go retries read requests.
		if err != nil {
			t.Errorf("New() failed: %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("what hung still does")
	}
	<-requests
	if lease, err := get(); err != nil || lease.Name != "node-1" {
		t.Errorf("got the lease %q, %v, want %q", lease.Name, err, "node-1")
	}
	if e := <-dates; e.Sent.After(e.Answered) || e.Date.Sub(e.Answered).Abs() > time.Minute {
		t.Errorf("sent at %s, answered at %s, by the server at %s", e.Sent, e.Answered, e.Date)
	}
}
