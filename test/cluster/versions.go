package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// jsonType is the content type of every answer through Versions, because JSON can be modified.
const jsonType = "application/json"

// Dialect is the difference of an API server of another version from this cluster's. The zero value is no difference.
type Dialect struct {
	// Missing has parts of paths that the server lacks, such as "/certificates.k8s.io/v1beta1/" or "/resize": it answers
	// 404.
	Missing []string
	// Unknown has the names of fields that the server does not know, at any depth: it drops them from JSON patches and
	// never sends them.
	Unknown []string
	// Send changes an object of a kind before it is sent, alone, in a list or in a watch; nil changes nothing.
	Send func(kind string, object map[string]any)
}

// Versions is an address of the API server at which it behaves as one of another version. A client has to present a
// client certificate of the cluster and is impersonated upstream.
type Versions struct {
	cluster *Cluster
	port    *port
	dialect atomic.Pointer[Dialect]
	// refused counts the requests that were answered with 404 because of a Dialect.
	refused atomic.Int64
}

// Versions serves until the test ends, with the cluster's own version until Speak.
func (c *Cluster) Versions(t testing.TB) *Versions {
	t.Helper()
	v, end, err := c.versions()
	if err != nil {
		t.Fatalf("cluster: an API server of another version: %v", err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("cluster: end an API server of another version: %v", err)
		}
	})
	return v
}

// Speak selects the dialect. Open watches do not change.
func (v *Versions) Speak(d Dialect) { v.dialect.Store(&d) }

// Refused returns the number of requests for paths that the Dialect lists as Missing.
func (v *Versions) Refused() int64 { return v.refused.Load() }

// SaveKubeconfig is Cluster.SaveKubeconfig for this address.
func (v *Versions) SaveKubeconfig(path, user string, groups ...string) error {
	return v.cluster.saveKubeconfig(path, "https://"+v.port.address(), user, groups)
}

func (c *Cluster) versions() (v *Versions, end func() error, err error) {
	held, err := holdPort()
	if err != nil {
		return nil, nil, err
	}
	v = &Versions{cluster: c, port: held}
	v.Speak(Dialect{})
	serving, err := c.authority.serving()
	if err != nil {
		return nil, nil, errors.Join(err, held.close())
	}
	certificate, err := tls.X509KeyPair(serving.cert, serving.key)
	if err != nil {
		return nil, nil, errors.Join(err, held.close())
	}
	proxy, closeIdle, err := v.proxy()
	if err != nil {
		return nil, nil, errors.Join(err, held.close())
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.authority.cert)
	ctx, cancel := context.WithCancel(context.Background())
	config := net.ListenConfig{Control: reusePort}
	listener, err := config.Listen(ctx, "tcp4", held.address())
	if err != nil {
		cancel()
		return nil, nil, errors.Join(err, held.close())
	}
	server := &http.Server{
		Handler: v.handler(proxy), ReadHeaderTimeout: probeTimeout,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, ClientCAs: roots,
			ClientAuth: tls.RequireAndVerifyClientCert,
		},
	}
	var work sync.WaitGroup
	work.Go(func() { _ = server.ServeTLS(listener, "", "") }) // it ends with Close
	return v, func() error {
		err := server.Close()
		cancel()
		work.Wait()
		closeIdle()
		return errors.Join(err, held.close())
	}, nil
}

// handler answers requests for missing paths itself, and forwards the others.
func (v *Versions) handler(proxy http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := v.dialect.Load()
		if slices.ContainsFunc(d.Missing, func(part string) bool { return strings.Contains(r.URL.Path+"/", part) }) {
			v.refused.Add(1)
			w.Header().Set("Content-Type", jsonType)
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{ // the client sees whether the answer is complete
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusNotFound,
				Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource",
			})
			return
		}
		if err := d.dropWritten(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// dropWritten drops unknown fields from a JSON body.
func (d *Dialect) dropWritten(r *http.Request) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if len(d.Unknown) == 0 || err != nil || !strings.HasSuffix(kind, "json") {
		return nil // nothing to do, or not readable
	}
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	var body any
	if err := json.Unmarshal(content, &body); err != nil {
		return err
	}
	d.drop(body)
	if content, err = json.Marshal(body); err != nil {
		return err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(content)), int64(len(content))
	r.Header.Set("Content-Length", strconv.Itoa(len(content)))
	return nil
}

// proxy forwards requests as the user who makes them.
func (v *Versions) proxy() (proxy *httputil.ReverseProxy, closeIdle func(), err error) {
	target, err := url.Parse(v.cluster.URL())
	if err != nil {
		return nil, nil, err
	}
	cert, err := v.cluster.authority.client(admin, []string{Masters})
	if err != nil {
		return nil, nil, err
	}
	certificate, err := tls.X509KeyPair(cert.cert, cert.key)
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(v.cluster.authority.cert)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots,
			Certificates: []tls.Certificate{certificate}},
		ForceAttemptHTTP2: true,
	}
	return &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, // a watch
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			subject := r.In.TLS.PeerCertificates[0].Subject
			r.Out.Header.Set("Impersonate-User", subject.CommonName)
			r.Out.Header["Impersonate-Group"] = subject.Organization
			r.Out.Header.Set("Accept", jsonType)
			r.Out.Header.Del("Accept-Encoding") // the transport requests what it can decode
		},
		ModifyResponse: v.change,
	}, transport.CloseIdleConnections, nil
}

// change changes an answer that contains objects.
func (v *Versions) change(r *http.Response) error {
	d := v.dialect.Load()
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != jsonType {
		return nil // it contains no objects
	}
	body := r.Body
	if r.Request.URL.Query().Get("watch") != "" {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(d.copyAll(writer, body)) }() // it ends with the watch, or when the body is closed
		r.Body = &watched{Reader: reader, close: func() error { return errors.Join(reader.Close(), body.Close()) }}
		return nil
	}
	var changed bytes.Buffer
	if err := errors.Join(d.copyAll(&changed, body), body.Close()); err != nil {
		return err
	}
	r.Body, r.ContentLength = io.NopCloser(&changed), int64(changed.Len())
	r.Header.Set("Content-Length", strconv.Itoa(changed.Len()))
	return nil
}

// watched is the body of a watch.
type watched struct {
	io.Reader
	close func() error
}

// Close implements io.Closer.
func (w *watched) Close() error { return w.close() }

// copyAll copies objects one by one in the dialect.
func (d *Dialect) copyAll(to io.Writer, from io.Reader) error {
	decoder, encoder := json.NewDecoder(from), json.NewEncoder(to)
	decoder.UseNumber()
	for {
		var object map[string]any
		if err := decoder.Decode(&object); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("decode an answer of the API server: %w", err)
		}
		if inner, ok := object["object"].(map[string]any); ok {
			d.send(inner)
		} else {
			d.send(object)
		}
		if err := encoder.Encode(object); err != nil {
			return err
		}
	}
}

// send converts an object, or each item of a list, to the dialect.
func (d *Dialect) send(object map[string]any) {
	d.drop(object)
	if d.Send == nil {
		return
	}
	kind, _ := object["kind"].(string)
	items, ok := object["items"].([]any)
	if !ok {
		d.Send(kind, object)
		return
	}
	for _, item := range items {
		if item, ok := item.(map[string]any); ok {
			d.Send(strings.TrimSuffix(kind, "List"), item)
		}
	}
}

// drop removes the unknown fields from a value, at any depth.
func (d *Dialect) drop(value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, below := range value {
			if slices.Contains(d.Unknown, name) {
				delete(value, name)
				continue
			}
			d.drop(below)
		}
	case []any:
		for _, below := range value {
			d.drop(below)
		}
	}
}
