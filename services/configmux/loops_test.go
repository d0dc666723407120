package configmux

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/filesource"
	"github.com/quartet-node/quartet/services/configmux/internal/httpsource"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
	"github.com/quartet-node/quartet/test/eventually"
)

// lockedSink is a merge whose lock is not free.
type lockedSink struct {
	asked chan string
	free  chan struct{}
}

// Set implements source.Sink.
func (s lockedSink) Set(name string, _ source.Reading) {
	s.asked <- name
	<-s.free
}

// everySource returns a source of each kind, and stops what they need when the test ends.
func everySource(t *testing.T, clock *clocktesting.FakeClock) sources {
	t.Helper()
	dir, logger, registry := t.TempDir(), slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	seals := sealing.NewKeyring(filepath.Join(dir, "secrets.key"), os.Geteuid())
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	must(t, err)
	client, err := rest.NewRESTClient(at, "/api/v1", rest.ClientContentConfig{}, nil, nil)
	must(t, err)
	return sources{all: []source.Source{
		filesource.New(filesource.Config{
			Path: filepath.Join(dir, "manifests"), Node: "node", Seals: seals, Period: time.Hour,
			Checkpoint: filepath.Join(dir, "kept"), Clock: clock, Tracer: telemetry.Off(), Logger: logger,
			Metrics: filesource.NewMetrics(registry),
		}),
		httpsource.New(httpsource.Config{
			URL: at, Node: "node", Period: time.Hour, Transport: httpsource.NewTransport(), Clock: clock,
			Tracer: telemetry.Off(), Logger: logger, Metrics: httpsource.NewMetrics(registry),
		}),
		localsource.New(localsource.Config{
			Dir: filepath.Join(dir, "applied"), Node: "node", Seals: seals, Clock: clock, Tracer: telemetry.Off(),
		}),
		apisource.New(apisource.Config{
			Client: client, Node: "node", Shared: true, Checkpoint: filepath.Join(dir, "api-pods"), Health: rpc.NewHealth(),
			Clock: clock, Tracer: telemetry.Off(), Logger: logger, Metrics: apisource.NewMetrics(registry),
		}),
	}}
}

// TestASourceThatStandsStillIsNamed has every source wait for a lock.
func TestASourceThatStandsStillIsNamed(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	given := everySource(t, clock)
	sink := lockedSink{asked: make(chan string, 100), free: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for _, one := range given.all {
		go func() { ended <- one.Run(ctx, sink) }()
	}
	stuck := func() (names []string) {
		for _, loop := range given.loops() {
			if loop.Check() != nil {
				names = append(names, loop.Name)
			}
		}
		return names
	}
	for range given.all {
		<-sink.asked
	}
	if got := stuck(); len(got) > 0 {
		t.Errorf("%q stand still at once", got)
	}
	clock.Step(watchdog.Limit + time.Second)
	if got, want := stuck(), []string{"source file", "source http", "source local", "source api"}; !slices.Equal(got, want) {
		t.Errorf("%q stand still, want %q", got, want)
	}
	close(sink.free)
	eventually.That(t, "every source turns again", func() bool { return len(stuck()) == 0 })
	cancel()
	for range given.all {
		if err := <-ended; err != nil && !strings.Contains(err.Error(), "canceled") {
			t.Error(err)
		}
	}
}
