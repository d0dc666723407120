package metrics

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// togetherTimeout bounds the wait for other processes, which are scraped in parallel. It is less than half of the
// shortest usual scrape timeout.
const togetherTimeout = 3 * time.Second

// ofProcess marks the metrics of the other processes. The label is not "service", which Prometheus sets on targets that
// it discovers by a Service of a cluster; with honor_labels, a label of that name would hide it.
var ofProcess = Merger{
	Label: "process", Up: "quartet_process_up",
	Help: "1 when the other process gave its metrics for this answer, 0 when it did not.",
}

// NodeGatherer gathers the metrics of this process and of the node's other processes, as one kubelet has them. Samples
// of this process are unchanged. Samples of another process have the label process, so that equal metrics of two
// processes do not collide, and do not depend on which processes answer.
type NodeGatherer struct {
	// Own gathers the metrics of this process.
	Own prometheus.Gatherer
	// Others maps the names of the other processes to their metrics addresses.
	Others map[string]string
	// Logger logs at debug level why the metrics of a process are missing.
	Logger *slog.Logger
}

// Gather implements prometheus.Gatherer. A process that does not answer in time is omitted without an error.
func (t NodeGatherer) Gather() ([]*dto.MetricFamily, error) {
	answers := make([]Answer, 0, len(t.Others))
	for _, process := range slices.Sorted(maps.Keys(t.Others)) {
		answers = append(answers, Answer{Process: process})
	}
	ctx, cancel := context.WithTimeout(context.Background(), togetherTimeout)
	defer cancel()
	var running sync.WaitGroup
	for i := range answers {
		running.Go(func() {
			answers[i].Families, answers[i].Err = Scrape(ctx, t.Others[answers[i].Process], Path)
		})
	}
	own, err := t.Own.Gather()
	running.Wait()
	for _, a := range answers {
		if a.Err != nil {
			t.Logger.Debug("the metrics of another process are left out", "process", a.Process, telemetry.KeyError, a.Err)
		}
	}
	families, conflicts := ofProcess.Merge(own, answers)
	for _, conflict := range conflicts {
		t.Logger.Debug("a metric of another process is left out", telemetry.KeyError, conflict)
	}
	return families, err
}
