package loop_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

func TestTheLastTurnIsReadAtTheScrape(t *testing.T) {
	registry, turned := prometheus.NewRegistry(), time.Time{}
	loop.NewMetrics(registry).Expose(func() time.Time { return turned })
	metricstest.Want(t, registry, 0, "quartet_loop_last_turn_timestamp_seconds")
	turned = time.Unix(7, 500_000_000)
	metricstest.Want(t, registry, 7.5, "quartet_loop_last_turn_timestamp_seconds")
}
