package metrics

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
)

// registered returns a registry with a counter of calls, and additional collectors.
func registered(t *testing.T, calls float64, more ...prometheus.Collector) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounterVec(
		prometheus.CounterOpts{Name: "kubelet_runtime_operations_total", Help: "Calls."},
		[]string{"operation_type"},
	)
	counter.WithLabelValues("version").Add(calls)
	registry.MustRegister(append(more, counter)...)
	return registry
}

func gauge(name string, labels prometheus.Labels) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: name, ConstLabels: labels})
	g.Set(1)
	return g
}

// serving serves a registry like a process.
func serving(t *testing.T, registry prometheus.Gatherer) (address string) {
	t.Helper()
	address = "unix://" + filepath.Join(t.TempDir(), "metrics.sock")
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Serve(ctx, ServeConfig{Address: address, Registry: registry, Logger: slog.New(slog.DiscardHandler),
			Ready: func(net.Addr) { close(ready) }})
	}()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return address
}

// TestOneProcessExposesTheMetricsOfAll parses the text: it has each family once, and each sample once.
func TestOneProcessExposesTheMetricsOfAll(t *testing.T) {
	pleg := serving(
		t,
		registered(
			t,
			2,
			gauge("kubelet_pleg_last_seen_seconds", nil),
			gauge("labeled", prometheus.Labels{"process": "own"}),
		),
	)
	nodestatus := serving(
		t,
		registered(
			t,
			3,
			gauge("kubelet_node_name", prometheus.Labels{"node": "node-1"}),
			prometheus.NewCounter(prometheus.CounterOpts{Name: "typed", Help: "A counter there."}),
		),
	)
	hung, err := net.Listen("unix", filepath.Join(t.TempDir(), "hung.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hung.Close() })
	own := registered(t, 1, gauge("typed", nil))
	all := NodeGatherer{Own: own, Logger: slog.New(slog.DiscardHandler), Others: map[string]string{
		"pleg":       pleg,
		"nodestatus": nodestatus,
		"configmux":  "unix://" + filepath.Join(t.TempDir(), "none.sock"),
		"hung":       "unix://" + hung.Addr().String(),
	}}
	metricstest.Exposes(t, all, metricstest.NodeAPI)
	for range 2 { // gathering does not change the gathered metrics
		begun := time.Now()
		recorder := httptest.NewRecorder()
		promhttp.HandlerFor(all, promhttp.HandlerOpts{}).
			ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
		body := recorder.Body.String()
		if took := time.Since(begun); recorder.Code != http.StatusOK || took > 30*time.Second {
			t.Fatalf("after %s: %d %s, want %d and at most %s", took, recorder.Code, body, http.StatusOK, 30*time.Second)
		}
		for _, want := range []string{
			`kubelet_runtime_operations_total{operation_type="version"} 1`,
			`kubelet_runtime_operations_total{operation_type="version",process="nodestatus"} 3`,
			`kubelet_runtime_operations_total{operation_type="version",process="pleg"} 2`,
			`kubelet_node_name{node="node-1",process="nodestatus"} 1`,
			`kubelet_pleg_last_seen_seconds{process="pleg"} 1`,
			`labeled{exported_process="own",process="pleg"} 1`,
			`typed 1`,
			`quartet_process_up{process="configmux"} 0`, `quartet_process_up{process="hung"} 0`,
			`quartet_process_up{process="nodestatus"} 1`, `quartet_process_up{process="pleg"} 1`,
		} {
			if strings.Count(body, want+"\n") != 1 {
				t.Errorf("%s is not there once:\n%s", want, body)
			}
		}
		for _, family := range []string{"kubelet_runtime_operations_total", "typed", "kubelet_node_name"} {
			if strings.Count(body, "# TYPE "+family+" ") != 1 {
				t.Errorf("%s is not one family:\n%s", family, body)
			}
		}
	}
}

func TestAnAnswerThatIsTooLargeIsLeftOut(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "large.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
			line := []byte("# HELP large " + strings.Repeat("x", 1<<16) + "\n")
			for range maxScrape/len(line) + 2 {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	if families, err := Scrape(t.Context(), "unix://"+socket, Path); err == nil {
		t.Errorf("%d families and no error", len(families))
	}
}
