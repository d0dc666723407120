// Package clockskew notices that the clock of this machine and the API server's differ. A lease bears it, for a node controller
// goes by when it has heard of a renewal; certificates and tokens do not: they are valid by one clock and not by the other.
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
	// most is what two clocks may differ without a word. The kubelet's and an API server's certificates and tokens are made to be
	// valid some minutes before they are.
	most = time.Minute
	// healthName is under what the health says it.
	healthName = "clock"
)

// Watch compares the clocks. Make it with New.
type Watch struct {
	health *rpc.Health
	logger *slog.Logger
	skew   prometheus.Gauge

	mu    sync.Mutex
	wrong bool
}

// New registers the metric of a watch that has seen nothing.
func New(registry prometheus.Registerer, health *rpc.Health, logger *slog.Logger) *Watch {
	w := &Watch{health: health, logger: logger, skew: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "quartet_nodestatus_clock_skew_seconds",
		Help: "How far the clock of this machine is ahead of the API server's, by its last answer; below 0 when it is behind. What a request may explain is 0.",
	})}
	registry.MustRegister(w.skew)
	return w
}

// Seen takes an answer of the API server. It never blocks.
func (w *Watch) Seen(e apiclient.Exchange) {
	skew := ahead(e)
	w.skew.Set(skew.Seconds())
	wrong := skew.Abs() > most
	w.mu.Lock()
	defer w.mu.Unlock()
	if !wrong {
		if w.wrong {
			w.logger.Info("the clock of this machine goes as the API server's again")
			w.health.Set(healthName, "")
		}
		w.wrong = false
		return
	}
	way := "ahead of"
	if skew < 0 {
		way = "behind"
	}
	text := fmt.Sprintf("the clock of this machine is %s %s the API server's: set it, by NTP for example; certificates and tokens are valid by one clock and not by the other",
		skew.Abs().Round(time.Second), way)
	w.health.Set(healthName, text)
	if !w.wrong {
		w.wrong = true
		w.logger.Warn(text)
	}
}

// ahead is how far this clock is ahead of the API server's, as far as nothing else explains the answer's date: that was made between
// the sending and the answer, and to the second.
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
