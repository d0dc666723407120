package clockskew

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/rpc"
)

func TestClockSkewIsReported(t *testing.T) {
	health, registry := rpc.NewHealth(), prometheus.NewRegistry()
	watch := New(registry, health, slog.New(slog.DiscardHandler))
	now := time.Unix(1e9, 3e8)
	for _, test := range []struct {
		name         string
		sent, answer time.Duration // relative to the date of the API server's answer
		skew         float64
		want         string
	}{
		{"the same clock", 200 * time.Millisecond, 400 * time.Millisecond, 0, ""},
		{"one that is a little ahead", 31 * time.Second, 31 * time.Second, 30, ""},
		{"one that is ahead", 301 * time.Second, 301 * time.Second, 300, "is 5m0s ahead of the API server's"},
		{"one that is behind", -10 * time.Minute, -10 * time.Minute, -600, "is 10m0s behind the API server's"},
		{"an answer that took long", -5 * time.Minute, 5 * time.Minute, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			watch.Seen(apiclient.Exchange{Date: now, Sent: now.Add(test.sent), Answered: now.Add(test.answer)})
			metricstest.Want(t, registry, test.skew, "quartet_nodestatus_clock_skew_seconds")
			waiting := strings.Join(health.Waiting(), "\n")
			if !strings.Contains(waiting, test.want) || (test.want == "") != (waiting == "") {
				t.Errorf("says %q, want %q", waiting, test.want)
			}
		})
	}
}
