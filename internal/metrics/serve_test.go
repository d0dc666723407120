package metrics_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves until the end of the test and returns the address.
func serve(t *testing.T, address string, registry prometheus.Gatherer) net.Addr {
	t.Helper()
	return serveMore(t, address, registry, nil)
}

func serveMore(
	t *testing.T,
	address string,
	registry prometheus.Gatherer,
	more map[string]prometheus.Gatherer,
) net.Addr {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		done <- metrics.Serve(ctx, metrics.ServeConfig{Address: address, Registry: registry, More: more,
			Ready: func(at net.Addr) { ready <- at }})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("a stop is not an error, got %v", err)
		}
	})
	select {
	case at := <-ready:
		return at
	case err := <-done:
		done <- err
		t.Fatal(err)
		return nil
	}
}

// get returns the status and the body of a path.
func get(t *testing.T, at net.Addr, path string) (int, string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, at.Network(), at.String())
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://node"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestWhatThereIsMoreOfIsAtAPathOfItsOwn(t *testing.T) {
	more := prometheus.NewRegistry()
	probes := prometheus.NewCounter(prometheus.CounterOpts{Name: "prober_probe_total", Help: "h"})
	more.MustRegister(probes)
	at := serveMore(t, "127.0.0.1:0", prometheus.NewRegistry(), map[string]prometheus.Gatherer{metrics.ProbesPath: more})
	if code, body := get(
		t,
		at,
		"/metrics/probes",
	); code != http.StatusOK ||
		!strings.Contains(body, "prober_probe_total 0") {
		t.Errorf("get(/metrics/probes) = %d %s, want %d and with %q", code, body, http.StatusOK, "prober_probe_total 0")
	}
	if code, body := get(t, at, "/metrics"); code != http.StatusOK || strings.Contains(body, "prober") {
		t.Errorf("get(/metrics) = %d %s, want %d and without %q", code, body, http.StatusOK, "prober")
	}
}

func TestEveryProcessHasItsOwnMetrics(t *testing.T) {
	m := metrics.New(nodeconfig.PLEG)
	for _, address := range []string{"unix://" + filepath.Join(t.TempDir(), "run", "pleg-metrics.sock"), "127.0.0.1:0"} {
		at := serve(t, address, m.Registry)
		code, body := get(t, at, "/metrics")
		if code != http.StatusOK {
			t.Fatalf("%s answers with %d: %s, want %d", address, code, body, http.StatusOK)
		}
		for _, want := range []string{"go_goroutines ", "process_resident_memory_bytes ", `service="pleg"`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s: %q is not in\n%s", address, want, body)
			}
		}
		if code, _ := get(t, at, "/debug/pprof/"); code != http.StatusNotFound {
			t.Errorf("%s answers with %d to what it does not have, want 404", address, code)
		}
	}
}

// broken cannot be collected.
type broken struct{ desc *prometheus.Desc }

func (b broken) Describe(ch chan<- *prometheus.Desc) { ch <- b.desc }
func (b broken) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(b.desc, os.ErrPermission)
}

func TestAMetricThatCannotBeReadHidesNoOther(t *testing.T) {
	m := metrics.New(nodeconfig.PLEG)
	m.Registry.MustRegister(broken{prometheus.NewDesc("broken", "", nil, nil)})
	code, body := get(t, serve(t, "127.0.0.1:0", m.Registry), "/metrics")
	if code != http.StatusOK || !strings.Contains(body, "quartet_build_info") {
		t.Errorf("got %d and %q, want the others", code, body)
	}
}

func TestAddressesThatCannotWorkAreRefusedWithWhatToDo(t *testing.T) {
	registry := prometheus.NewRegistry()
	takenPort := serve(t, "127.0.0.1:0", registry).String()
	takenSocket := "unix://" + serve(t, "unix://"+filepath.Join(t.TempDir(), "m.sock"), registry).String()
	for address, want := range map[string]string{
		takenPort:                        "is taken by another process",
		takenSocket:                      "serves on ",
		"0.0.0.0:9101":                   "set it to 127.0.0.1:9101, or to a unix socket",
		"node.example:9101":              "loopback interface only",
		"9101":                           "want unix:///ABSOLUTE/PATH, or an address such as 127.0.0.1:9101",
		"unix://relative":                "want unix:///ABSOLUTE/PATH",
		"unix:///proc/nowhere/here.sock": "make the directory of",
	} {
		err := metrics.Serve(t.Context(), metrics.ServeConfig{Address: address, Registry: registry})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--metrics-listen") {
			t.Errorf("%s: got %v, want %q and the flag in it", address, err, want)
		}
	}
}

func TestNoAddressServesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := metrics.Serve(ctx, metrics.ServeConfig{}); err != nil {
		t.Error(err)
	}
}
