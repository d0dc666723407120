package certexpiry

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestACertificateIsWarnedOfBeforeItExpires: in the last tenth of its lifetime, again each day and when it has expired,
// and not any more when its file was replaced. The metric has the new time.
func TestACertificateIsWarnedOfBeforeItExpires(t *testing.T) {
	ca, dir := authority.New(t, "ca"), t.TempDir()
	const lifetime = 24 * time.Hour
	request := authority.Request{Name: "pleg", For: lifetime}
	files := ca.Issue(t, dir, request)
	certificate, ok := OfFiles(files)
	if !ok {
		t.Fatal("there is no certificate")
	}
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	w := New(certificate, registry, nil, slog.New(slog.NewTextHandler(&log, nil)))
	leaf := w.leaf()
	clock := testingclock.NewFakeClock(leaf.NotAfter.Add(-Near(leaf) - time.Minute))
	w.clock = clock
	warnings := func(what string, want int, text string) {
		t.Helper()
		log.Reset()
		for range 3 {
			w.look(t.Context())
		}
		if got := strings.Count(log.String(), "level=WARN"); got != want || !strings.Contains(log.String(), text) {
			t.Errorf("%s: %d warnings, want %d with %q:\n%s", what, got, want, text, &log)
		}
	}
	warnings("long before", 0, "")
	clock.Step(time.Minute)
	warnings("near the expiry", 1, "expires soon")
	warnings("the same minute", 0, "")
	clock.SetTime(leaf.NotAfter)
	warnings("at the expiry", 1, "has expired")
	clock.Step(remindEvery)
	warnings("a day later", 1, "file="+files.Cert)
	if got := valueOf(t, registry); got != float64(leaf.NotAfter.Unix()) {
		t.Errorf("the metric is %v, want %v", got, leaf.NotAfter.Unix())
	}

	request.For = 100 * lifetime
	ca.Issue(t, dir, request)
	warnings("after a renewal", 0, "")
	if got := valueOf(t, registry); got < float64(leaf.NotAfter.Unix()) {
		t.Errorf("after a renewal the metric is %v", got)
	}
}

func valueOf(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != Metric {
		t.Fatalf("there are %v, %v", families, err)
	}
	return families[0].GetMetric()[0].GetGauge().GetValue()
}

// TestNearIsAWeekAtMost, and a tenth of a shorter lifetime.
func TestNearIsAWeekAtMost(t *testing.T) {
	ca := authority.New(t, "ca")
	for lifetime, want := range map[time.Duration]time.Duration{
		365 * 24 * time.Hour: 7 * 24 * time.Hour, time.Hour: 6 * time.Minute,
	} {
		certificate, _ := OfFiles(ca.Issue(t, t.TempDir(), authority.Request{Name: "pleg", For: lifetime}))
		leaf := (&Watcher{certificate: certificate}).leaf()
		// The issuer lets a certificate begin a little earlier.
		if got := Near(leaf); got < want || got > want+time.Hour {
			t.Errorf("of %s the last %s are near, want %s", lifetime, got, want)
		}
	}
}

// TestItIsWatchedWhileTheProcessRuns.
func TestItIsWatchedWhileTheProcessRuns(t *testing.T) {
	if _, ok := OfFiles(peertls.Files{}); ok {
		t.Error("without files there is a certificate")
	}
	certificate, _ := OfFiles(authority.New(t, "ca").Issue(t, t.TempDir(), authority.Request{Name: "pleg", For: time.Hour}))
	var log logbuffer.Buffer
	clock := testingclock.NewFakeClock(time.Now())
	w := New(certificate, prometheus.NewRegistry(), clock, slog.New(slog.NewTextHandler(&log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	eventually.That(t, "it waits", clock.HasWaiters)
	clock.Step(time.Hour)
	eventually.That(t, "it warns", func() bool { return strings.Contains(log.String(), "has expired") })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
