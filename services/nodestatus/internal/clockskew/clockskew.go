// Package clockskew detects that the clocks of this machine and the API server differ. A lease tolerates that, because
// a node controller uses its own time of the renewal; certificates and tokens do not, because they are valid by one
// clock and not by the other.
package clockskew

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/rpc"
)

const (
	// tolerance is the tolerated difference of the clocks. The certificates and tokens of Kubernetes are issued to be
	// valid some minutes before.
	tolerance = time.Minute
	// healthName is the name in the health.
	healthName = "clock"
)

// Watch compares the clocks. Create it with New.
type Watch struct {
	health *rpc.Health
	logger *slog.Logger
	skew   prometheus.Gauge

	mu    sync.Mutex
	wrong bool
}

// New returns a Watch and registers its metric.
func New(registry prometheus.Registerer, health *rpc.Health, logger *slog.Logger) *Watch {
	w := &Watch{health: health, logger: logger, skew: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "quartet_nodestatus_clock_skew_seconds",
		Help: "Seconds by which the clock of this machine is ahead of the API server's, by its last response; negative if it is behind. 0 if the duration of the request explains the difference.",
	})}
	registry.MustRegister(w.skew)
	return w
}

// Seen processes the times of a response of the API server. It never blocks.
func (w *Watch) Seen(e apiclient.Exchange) {
	skew := ahead(e)
	w.skew.Set(skew.Seconds())
	wrong := skew.Abs() > tolerance
	w.mu.Lock()
	defer w.mu.Unlock()
	if !wrong {
		if w.wrong {
			w.logger.Info("the clock of this machine agrees with the API server's again")
			w.health.Set(healthName, "")
		}
		w.wrong = false
		return
	}
	direction := "ahead of"
	if skew < 0 {
		direction = "behind"
	}
	text := fmt.Sprintf(
		"the clock of this machine is %s %s the API server's: set it, by NTP for example; certificates and tokens are valid by one clock and not by the other",
		skew.Abs().Round(time.Second),
		direction,
	)
	w.health.Set(healthName, text)
	if !w.wrong {
		w.wrong = true
		w.logger.Warn(text)
	}
}

// ahead returns the minimum by which this clock is ahead of the API server's. The response's date is from between the
// request and the response, truncated to seconds.
func ahead(e apiclient.Exchange) time.Duration {
	switch {
	case e.Date.Add(time.Second).Before(e.Sent):
		return e.Sent.Sub(e.Date.Add(time.Second))
	case e.Date.After(e.Answered):
		return -e.Date.Sub(e.Answered)
	default:
		return 0
	}
}
