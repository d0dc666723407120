package httpsource

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience is the time limit of a wait, much longer than any of them needs.
	patience = 60 * time.Second
	// period is the time between requests, on the tests' clock.
	period = 20 * time.Second
)

// web is a server whose answers a test sets.
type web struct {
	*httptest.Server
	mu       sync.Mutex
	handler  http.HandlerFunc
	received []*http.Request
}

func serve(t *testing.T, start func(http.Handler) *httptest.Server) *web {
	t.Helper()
	w := &web{}
	w.answer("")
	w.Server = start(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		w.mu.Lock()
		handler := w.handler
		w.received = append(w.received, request)
		w.mu.Unlock()
		handler(out, request)
	}))
	// The test causes failures on purpose, so they are not logged.
	w.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(w.Close)
	return w
}

// does sets the server's handler for later requests.
func (w *web) does(handler http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handler = handler
}

// answer sets the body of later answers.
func (w *web) answer(body string) {
	w.does(func(out http.ResponseWriter, _ *http.Request) { _, _ = out.Write([]byte(body)) })
}

func (w *web) requests() []*http.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.received)
}

// rig is a running HTTP source with a sink that stores its readings.
type rig struct {
	t        *testing.T
	clock    *testingclock.FakeClock
	registry *prometheus.Registry
	spans    *tracetest.InMemoryExporter
	log      *logbuffer.Buffer

	given chan source.Reading
	stop  func()
}

func (r *rig) Set(name string, reading source.Reading) {
	if name != Name {
		panic("reading of another source: " + name)
	}
	r.given <- reading
}

type option func(*Config, *Source)

func header(name string, values ...string) option {
	return func(cfg *Config, _ *Source) {
		if cfg.Header == nil {
			cfg.Header = map[string][]string{}
		}
		cfg.Header[name] = values
	}
}

func transport(from *http.Client) option {
	return func(cfg *Config, _ *Source) { cfg.Transport = from.Transport.(*http.Transport).Clone() }
}

// impatient sets the time limit for answers.
func impatient(limit time.Duration) option {
	return func(_ *Config, s *Source) {
		if s != nil {
			s.client.timeout = limit
		}
	}
}

// start runs an HTTP source until the test ends.
func start(t *testing.T, at string, options ...option) *rig {
	t.Helper()
	r := &rig{
		t: t, clock: testingclock.NewFakeClock(time.Unix(1000, 0)), registry: prometheus.NewRegistry(),
		spans: tracetest.NewInMemoryExporter(), log: &logbuffer.Buffer{}, given: make(chan source.Reading, 1),
	}
	cfg := Config{
		URL: parsed(t, at), Node: "node", Period: period, Transport: NewTransport(), Clock: r.clock,
		Tracer: sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans)).Tracer(""),
		Logger: slog.New(slog.NewTextHandler(r.log, nil)), Metrics: NewMetrics(r.registry),
	}
	for _, o := range options {
		o(&cfg, nil)
	}
	s := New(cfg)
	for _, o := range options {
		o(&cfg, s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// next waits for the next reading.
func (r *rig) next() source.Reading {
	r.t.Helper()
	select {
	case reading := <-r.given:
		return reading
	case <-time.After(patience):
		r.t.Fatal("waited for a reading")
		return source.Reading{}
	}
}

// poll advances the clock by the period, and returns the next reading.
func (r *rig) poll() source.Reading {
	r.t.Helper()
	r.clock.Step(period)
	return r.next()
}

// want fails the test unless a reading is not failed and has exactly these pods, as "name image", and that many errors.
func (r *rig) want(got source.Reading, errors int, pods ...string) {
	r.t.Helper()
	if got.Failed || len(got.Errors) != errors || !slices.Equal(summary(got), pods) {
		r.t.Fatalf(
			"pods %v, errors %v, failed %v; want pods %v and %d errors",
			summary(got),
			got.Errors,
			got.Failed,
			pods,
			errors,
		)
	}
}

// wantFailed fails the test unless a reading is failed and has one error with the text in it.
func (r *rig) wantFailed(got source.Reading, text string) {
	r.t.Helper()
	if !got.Failed || len(got.Errors) != 1 || !strings.Contains(got.Errors[0].Message, text) || len(got.Pods) > 0 {
		r.t.Fatalf("failed %v, pods %v, errors %v; want a failure that says %q", got.Failed, summary(got), got.Errors, text)
	}
}

func summary(reading source.Reading) []string {
	var out []string
	for _, p := range reading.Pods {
		out = append(out, p.Name+" "+p.Spec.Containers[0].Image)
	}
	slices.Sort(out)
	return out
}

func manifest(name, image string) string {
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: %s}]}\n",
		name,
		image,
	)
}

// list is a PodList in JSON of pods that are named in turn with their image.
func list(namesAndImages ...string) string {
	var items []string
	for pair := range slices.Chunk(namesAndImages, 2) {
		items = append(
			items,
			fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":%q}]}}`, pair[0], pair[1]),
		)
	}
	return `{"apiVersion":"v1","kind":"PodList","items":[` + strings.Join(items, ",") + `]}`
}

func parsed(t *testing.T, text string) *url.URL {
	t.Helper()
	at, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
