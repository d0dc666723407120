package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"
)

const (
	// etcdName is the name of etcd's binary.
	etcdName = "etcd"
	// probeTimeout bounds one request to a server, so that one that hangs is retried.
	probeTimeout = 5 * time.Second
	// maxAnswer is the limit of an answer in bytes. The answers that are examined have some hundred bytes.
	maxAnswer = 64 << 10
)

func newEtcd(dir, binDir string, port *port) *Server {
	url := "http://" + port.address()
	ready := func(ctx context.Context) error {
		_, err := ask(ctx, &http.Transport{}, http.MethodGet, url+"/readyz", nil)
		return err
	}
	return newServer(dir, binDir, etcdName, ready,
		"--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+url, "--advertise-client-urls="+url, "--socket-reuse-port",
		// It has no peers.
		"--listen-peer-urls=http://127.0.0.1:0")
}

// compact compacts etcd at a new revision. This is the revision of a key that the API server does not use, so every
// resource version that the API server has returned is older.
func compact(ctx context.Context, etcd *port) error {
	url := "http://" + etcd.address() + "/v3/kv/"
	var put struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	// Bytes are base64 in etcd's JSON, as they are in Go's, and 64-bit numbers are strings.
	key := map[string][]byte{"key": []byte("quartet-test-compaction"), "value": []byte("1")}
	if err := call(ctx, url+"put", key, &put); err != nil {
		return fmt.Errorf("write a key to etcd: %w", err)
	}
	request := map[string]any{"revision": put.Header.Revision, "physical": true}
	if err := call(ctx, url+"compaction", request, &struct{}{}); err != nil {
		return fmt.Errorf("compact etcd at revision %s: %w", put.Header.Revision, err)
	}
	return nil
}

// call posts JSON and decodes the answer.
func call(ctx context.Context, url string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	content, err := ask(ctx, &http.Transport{}, http.MethodPost, url, body)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, answer)
}

// ask sends one request on a connection of its own, which is closed afterwards, and fails unless the answer is 200.
func ask(ctx context.Context, transport *http.Transport, method, url string, body []byte) (content []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	transport.DisableKeepAlives = true
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	content, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, content)
	}
	return content, err
}
