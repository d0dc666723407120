package server_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimestate"
	"github.com/quartet-node/quartet/services/pleg/internal/server"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHealthFailsWhenRelistsStop(t *testing.T) {
	for _, tt := range []struct {
		name    string
		evented bool
		limit   time.Duration
	}{
		{"every second", false, 3 * time.Minute},
		{"with events", true, 10 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake := fakecri.New(t)
			clock := clocktesting.NewFakeClock(time.Now())
			relister, srv := start(t, fake, clock)
			relister.SetEvented(tt.evented)
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			if _, err := relister.Request(ctx, 0); err != nil {
				t.Fatal(err)
			}
			// From here on no relist can end.
			defer fake.Hang("ListPodSandbox", "").Open()
			clock.Step(tt.limit)
			if health := healthOf(t, srv); !health.GetHealthy() || health.GetRelistOverdue() {
				t.Errorf("within the limit it is not healthy: %v", health.GetReasons())
			}
			clock.Step(time.Second)
			health := healthOf(t, srv)
			if health.GetHealthy() || !health.GetRelistOverdue() || len(health.GetReasons()) != 1 ||
				!strings.Contains(health.GetReasons()[0], "no relist has finished") {
				t.Errorf("past the limit of %v the health is %v", tt.limit, health)
			}
		})
	}
}

// TestTheShorterLimitBeginsWhenEventsAreLost: a relist that was not due before is not overdue at once.
func TestTheShorterLimitBeginsWhenEventsAreLost(t *testing.T) {
	fake := fakecri.New(t)
	clock := clocktesting.NewFakeClock(time.Now())
	relister, srv := start(t, fake, clock)
	relister.SetEvented(true)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if _, err := relister.Request(ctx, 0); err != nil {
		t.Fatal(err)
	}
	defer fake.Hang("ListPodSandbox", "").Open()
	clock.Step(4 * time.Minute)
	relister.SetEvented(false)
	clock.Step(3 * time.Minute)
	if health := healthOf(t, srv); !health.GetHealthy() {
		t.Errorf("3 minutes after events were lost it is not healthy: %v", health.GetReasons())
	}
	clock.Step(time.Second)
	if health := healthOf(
		t,
		srv,
	); health.GetHealthy() ||
		!strings.Contains(health.GetReasons()[0], "for 7m1s, the limit is 3m0s") {
		t.Errorf("past that the health is %v", health)
	}
}

func healthOf(t *testing.T, srv *server.Server) *lifecyclev1.GetHealthResponse {
	t.Helper()
	health, err := srv.GetHealth(t.Context(), &lifecyclev1.GetHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return health
}

// start runs what is behind a server until the test ends, and returns when the runtime has answered.
func start(t *testing.T, fake *fakecri.Server, clock *clocktesting.FakeClock) (*relist.Relister, *server.Server) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	client := harness.CRIClient(t, fake.Endpoint())
	events := stream.NewEdge[*lifecyclev1.Event](stream.Config{Clock: clock})
	relister := relist.New(relist.Config{
		Runtime:  client.Runtime,
		Events:   events,
		Tracer:   noop.NewTracerProvider().Tracer(""),
		Timeout:  time.Minute,
		BootTime: boottime.Now,
		Clock:    clock,
		Logger:   logger,
		Metrics:  relist.NewMetrics(prometheus.NewRegistry()),
	})
	answered := make(chan string, 1)
	runtime := runtimestate.New(runtimestate.Config{
		Endpoint: fake.Endpoint(),
		Runtime:  client.Runtime,
		Clock:    clock,
		Logger:   logger,
		Changed:  func(reason string) { answered <- reason },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- relister.Run(ctx) }()
	go func() { done <- runtime.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
	if reason := <-answered; reason != "" {
		t.Fatalf("reason %q, want none", reason)
	}
	return relister, server.New(relister, events, runtime, clock, boottime.Now)
}
