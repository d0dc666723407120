package metrics_test

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/quartet-node/quartet/cmd/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/nodeprocess/nodeprocesstest"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sockets is a directory with the metrics sockets of some services.
type sockets struct {
	t   *testing.T
	dir string
}

func newSockets(t *testing.T) sockets {
	t.Helper()
	dir, err := os.MkdirTemp("", "metrics") // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return sockets{t: t, dir: dir}
}

// at returns the path of a service's socket, in a new directory.
func (s sockets) at(service string) string {
	s.t.Helper()
	path := layout.MetricsSocketIn(s.dir, layout.Service(service))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// serve serves the metrics of a service.
func (s sockets) serve(service string, collectors ...prometheus.Collector) {
	s.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors...)
	s.answer(service, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}

// answer serves a service with a handler. The returned function ends it.
func (s sockets) answer(service string, handler http.Handler) (stop func()) {
	s.t.Helper()
	listener, err := net.Listen("unix", s.at(service))
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener) // it ends when it is closed
	}()
	stop = sync.OnceFunc(func() {
		if err := server.Close(); err != nil {
			s.t.Error(err)
		}
		<-done
	})
	s.t.Cleanup(stop)
	return stop
}

func gauge(name string, value float64, labels prometheus.Labels) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "Of " + name + ".", ConstLabels: labels})
	g.Set(value)
	return g
}

// run runs the command and returns its output.
func run(t *testing.T, args ...string) (out, errOut string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := metrics.Command()
	cmd.SetArgs(args)
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func contains(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("the line %q is not in\n%s", line, text)
		}
	}
}

func TestFourServicesAreOneExposition(t *testing.T) {
	s := newSockets(t)
	histogram := prometheus.NewHistogram(
		prometheus.HistogramOpts{Name: "took_seconds", Help: "Took.", Buckets: []float64{0.1, 1}},
	)
	histogram.Observe(0.5)
	s.serve("configmux", gauge("shared", 1, nil))
	s.serve("pleg", gauge("shared", 2, prometheus.Labels{"a": "x", "z": "y"}), histogram)
	s.serve("syncloop", gauge("quartet_build_info", 1, prometheus.Labels{"service": "syncloop"}))
	s.serve("nodestatus", gauge("shared", 0.1, prometheus.Labels{"service": "mine"}))
	out, errOut, err := run(t, "--socket-dir", s.dir)
	if err != nil || errOut != "" {
		t.Fatalf("got %v and %q, want an empty text", err, errOut)
	}
	contains(
		t,
		out,
		`shared{service="configmux"} 1`,
		`shared{a="x",service="pleg",z="y"} 2`,
		`shared{exported_service="mine",service="nodestatus"} 0.1`,
		`quartet_build_info{service="syncloop"} 1`,
		`took_seconds_bucket{service="pleg",le="1"} 1`,
		`took_seconds_bucket{service="pleg",le="+Inf"} 1`,
		`took_seconds_count{service="pleg"} 1`,
		`quartet_up{service="configmux"} 1`,
		`quartet_up{service="pleg"} 1`,
		`quartet_up{service="syncloop"} 1`,
		`quartet_up{service="nodestatus"} 1`,
	)
	if n := strings.Count(out, "# TYPE shared gauge"); n != 1 {
		t.Errorf("the family has %d heads, want one:\n%s", n, out)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(out)); err != nil {
		t.Errorf("Prometheus cannot read it: %v\n%s", err, out)
	}
}

func TestAnUnavailableServiceCostsALineAndIsReportedAsDown(t *testing.T) {
	s := newSockets(t)
	s.serve("configmux", gauge("shared", 1, nil))
	out, errOut, err := run(t, "--socket-dir", s.dir)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, out, `quartet_up{service="configmux"} 1`, `quartet_up{service="pleg"} 0`, `shared{service="configmux"} 1`)
	lines := strings.Split(strings.TrimSpace(errOut), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "pleg: no metrics from "+s.dir) ||
		!strings.Contains(lines[0], "it does not run") {
		t.Errorf("want a line for each of three services, got\n%s", errOut)
	}
}

// TestANodeOfASiteHasNoMetricsOfConfigmux: it runs elsewhere, and is not down.
func TestANodeOfASiteHasNoMetricsOfConfigmux(t *testing.T) {
	l, err := layout.New(harness.ShortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	s := sockets{t: t, dir: l.SocketDir()}
	for _, service := range []string{"pleg", "syncloop", "nodestatus"} {
		s.serve(service, gauge("shared", 1, nil))
	}
	nodeprocesstest.Start(t, l.StateDir(), layout.SyncLoop, "--configmux-address=configmux.example:7441")
	out, errOut, err := run(t, "--state-dir", l.StateDir())
	if err != nil || errOut != "" || strings.Contains(out, "configmux") {
		t.Errorf("got %v, %q and\n%s\nwant nothing of configmux", err, errOut, out)
	}
	const want = "configmux: it runs elsewhere, at configmux.example:7441: run the command on its machine"
	if _, _, err := run(t, "configmux", "--state-dir", l.StateDir()); err == nil || err.Error() != want {
		t.Errorf("run(configmux) error = %v, want %s", err, want)
	}
}

func TestWhatIsAddedIsInTheDocument(t *testing.T) {
	s := newSockets(t)
	s.serve("pleg")
	out, _, err := run(t, "--socket-dir", s.dir)
	if err != nil {
		t.Fatal(err)
	}
	metricstest.Documented(t, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(out))
		return slices.Collect(maps.Values(families)), err
	}), metricstest.WholeNode)
}

func TestOneServiceAlone(t *testing.T) {
	s := newSockets(t)
	s.serve("pleg", gauge("mine", 1, nil))
	s.serve("syncloop", gauge("other", 1, nil))
	out, _, err := run(t, "pleg", "--socket-dir", s.dir)
	if err != nil || strings.Contains(out, "other") {
		t.Fatalf("got %v and\n%s\nwant text without %q", err, out, "other")
	}
	contains(t, out, `mine{service="pleg"} 1`)
	if _, _, err := run(
		t,
		"configmux",
		"--socket-dir",
		s.dir,
	); err == nil ||
		!strings.Contains(err.Error(), "configmux: no metrics from") {
		t.Errorf("got %v, want that configmux has none", err)
	}
}

func TestInvalidQueries(t *testing.T) {
	s := newSockets(t)
	for want, args := range map[string][]string{
		"is the node running?":                {"--socket-dir", s.dir},
		"there is no service \"kubelet\"":     {"kubelet"},
		"--listen serves all services":        {"pleg", "--listen", "127.0.0.1:0"},
		"loopback interface only":             {"--listen", "0.0.0.0:10256"},
		"want an address and a port":          {"--listen", "10256"},
		"set it to 127.0.0.1:10256":           {"--listen", ":10256"},
		"neither TLS nor a password":          {"--listen", "192.0.2.1:10256"},
		"or name its state directory with --": {"--state-dir", filepath.Join(s.dir, "nothing")},
	} {
		if _, _, err := run(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", args, err, want)
		}
	}
}

func TestMetricsOfTwoTypesAreNotMixed(t *testing.T) {
	s := newSockets(t)
	s.serve("configmux", gauge("changed", 1, nil))
	s.serve(
		"pleg",
		prometheus.NewCounter(prometheus.CounterOpts{Name: "changed", Help: "Changed."}),
		gauge("fine", 3, nil),
	)
	out, errOut, err := run(t, "--socket-dir", s.dir)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, out, `changed{service="configmux"} 1`, `fine{service="pleg"} 3`)
	if strings.Contains(out, `changed{service="pleg"}`) || !strings.Contains(errOut, "pleg: its changed is left out") {
		t.Errorf("run(--socket-dir) =\n%s\n%s\nwant text without %q and with %q",
			out, errOut, `changed{service="pleg"}`, "pleg: its changed is left out")
	}
}

func TestAnAnswerThatIsNoneNamesTheService(t *testing.T) {
	s := newSockets(t)
	s.answer("pleg", http.NotFoundHandler())
	s.answer("syncloop", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, "not { a metric") // the client may have gone
	}))
	s.serve("configmux", gauge("fine", 1, nil))
	out, errOut, err := run(t, "--socket-dir", s.dir)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, out, `quartet_up{service="pleg"} 0`, `quartet_up{service="syncloop"} 0`)
	if !strings.Contains(errOut, "pleg: no metrics from") || !strings.Contains(errOut, "404") ||
		!strings.Contains(errOut, "its answer cannot be read") {
		t.Errorf("run(--socket-dir) =\n%s\nwant text with %q, with %q and with %q",
			errOut, "pleg: no metrics from", "404", "its answer cannot be read")
	}
}

func TestADeniedUserGetsTheReason(t *testing.T) {
	s := newSockets(t)
	s.serve("configmux", gauge("fine", 1, nil))
	listener, err := net.Listen("unix", s.at("pleg"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // as a service closes the connection of a user who is not allowed
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close() // the test depends on it
		}
	}()
	defer func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		<-done
	}()
	_, errOut, err := run(t, "--socket-dir", s.dir)
	if err != nil || !strings.Contains(errOut, "pleg: no metrics") || !strings.Contains(errOut, "--observe-uids") {
		t.Errorf("run(--socket-dir) error = %v\n%s\nwant text with %q and with %q",
			err, errOut, "pleg: no metrics", "--observe-uids")
	}
}
