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

// jsonType is what every answer by way of Versions is in: it can be changed.
const jsonType = "application/json"

// Dialect is in what an API server of another version differs from this cluster's. The zero value is none.
type Dialect struct {
	// Missing are parts of paths that it does not have, as "/certificates.k8s.io/v1beta1/" or "/resize": it answers 404.
	Missing []string
	// Unknown are the names of fields that it does not have, wherever they stand: it drops them of what is written by a patch in JSON,
	// and never sends them.
	Unknown []string
	// Send changes an object of a kind before it is sent, alone, in a list or in a watch; nil changes none.
	Send func(kind string, object map[string]any)
}

// Versions is an address of the API server at which it is one of another version. Who comes has to show a client certificate of the
// cluster, and is asked for upstream by its name.
type Versions struct {
	cluster *Cluster
	port    *port
	dialect atomic.Pointer[Dialect]
	// refused counts what was answered with 404 for a Dialect.
	refused atomic.Int64
}

// Versions serves until the test ends, as the cluster's own version until Speak.
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

// Speak makes it one of another version. Watches that are under way stay as they are.
func (v *Versions) Speak(d Dialect) { v.dialect.Store(&d) }

// Refused is how many requests were for what a Dialect is Missing.
func (v *Versions) Refused() int64 { return v.refused.Load() }

// SaveKubeconfig is Cluster.SaveKubeconfig by way of it.
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
		Handler: v.handler(proxy), ReadHeaderTimeout: probeTimeout, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
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

// handler answers what is missing itself, and passes on the rest.
func (v *Versions) handler(proxy http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := v.dialect.Load()
		if slices.ContainsFunc(d.Missing, func(part string) bool { return strings.Contains(r.URL.Path+"/", part) }) {
			v.refused.Add(1)
			w.Header().Set("Content-Type", jsonType)
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{ // who asks sees whether it was whole
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

// dropWritten drops what it does not know of a body in JSON.
func (d *Dialect) dropWritten(r *http.Request) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if len(d.Unknown) == 0 || err != nil || !strings.HasSuffix(kind, "json") {
		return nil // nothing to do, or not to be read
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

// proxy passes on requests in the name of who makes them.
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
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{certificate}},
		ForceAttemptHTTP2: true,
	}
	return &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, // a watch
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			who := r.In.TLS.PeerCertificates[0].Subject
			r.Out.Header.Set("Impersonate-User", who.CommonName)
			r.Out.Header["Impersonate-Group"] = who.Organization
			r.Out.Header.Set("Accept", jsonType)
			r.Out.Header.Del("Accept-Encoding") // the transport asks for what it understands
		},
		ModifyResponse: v.change,
	}, transport.CloseIdleConnections, nil
}

// change changes an answer that has objects.
func (v *Versions) change(r *http.Response) error {
	d := v.dialect.Load()
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != jsonType {
		return nil // nothing that has objects
	}
	body := r.Body
	if r.Request.URL.Query().Get("watch") != "" {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(d.copyAll(writer, body)) }() // it ends with the watch, or with who reads
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

// copyAll copies objects, one after the other, as they are to be sent.
func (d *Dialect) copyAll(to io.Writer, from io.Reader) error {
	decoder, encoder := json.NewDecoder(from), json.NewEncoder(to)
	decoder.UseNumber()
	for {
		var object map[string]any
		if err := decoder.Decode(&object); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("an answer of the API server: %w", err)
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

// send makes an object, or all of a list, as it is to be sent.
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

// drop removes the fields that are unknown from a value, at any depth.
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
