package metrics

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// togetherTimeout bounds the wait for other processes, which are scraped in parallel. It is less than half of the
	// shortest usual scrape timeout.
	togetherTimeout = 3 * time.Second
	// labelProcess is the label with the name of another process. It is not "service", which Prometheus sets on targets
	// that it discovers by a Service of a cluster; with honor_labels, a label of that name would hide it.
	labelProcess = "process"
	// labelExported replaces labelProcess on a sample that has a label of that name itself.
	labelExported = "exported_process"
	// nameUp is the metric that reports which of the other processes have answered.
	nameUp = "quartet_process_up"
)

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

// answer is the response of one process.
type answer struct {
	process  string
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. A process that does not answer in time is omitted without an error.
func (t NodeGatherer) Gather() ([]*dto.MetricFamily, error) {
	answers := make([]answer, 0, len(t.Others))
	for _, process := range slices.Sorted(maps.Keys(t.Others)) {
		answers = append(answers, answer{process: process})
	}
	ctx, cancel := context.WithTimeout(context.Background(), togetherTimeout)
	defer cancel()
	var running sync.WaitGroup
	for i := range answers {
		running.Go(func() {
			answers[i].families, answers[i].err = Scrape(ctx, t.Others[answers[i].process], Path)
		})
	}
	own, err := t.Own.Gather()
	running.Wait()
	for _, a := range answers {
		if a.err != nil {
			t.Logger.Debug("the metrics of another process are left out", "process", a.process, telemetry.KeyError, a.err)
		}
	}
	return together(own, answers), err
}

// together merges the metrics of this process and the answers of others, in the order of names. It omits a family of
// another process whose type differs, as during an upgrade, because a name can have only one type.
func together(own []*dto.MetricFamily, answers []answer) []*dto.MetricFamily {
	families := map[string]*dto.MetricFamily{}
	for _, family := range own {
		// The gathered metrics are cloned because other gatherers may share them.
		families[family.GetName()] = &dto.MetricFamily{
			Name:   family.Name,
			Help:   family.Help,
			Type:   family.Type,
			Unit:   family.Unit,
			Metric: slices.Clone(family.GetMetric()),
		}
	}
	up := &dto.MetricFamily{
		Name: proto.String(nameUp),
		Help: proto.String("1 when the other process gave its metrics for this answer, 0 when it did not."),
		Type: dto.MetricType_GAUGE.Enum(),
	}
	for _, a := range answers {
		value := 0.0
		if a.err == nil {
			value = 1
		}
		up.Metric = append(up.Metric, &dto.Metric{Label: withProcess(nil, a.process), Gauge: &dto.Gauge{Value: &value}})
		if a.err != nil {
			continue
		}
		for _, family := range a.families {
			for _, metric := range family.GetMetric() {
				metric.Label = withProcess(metric.GetLabel(), a.process)
			}
			switch known := families[family.GetName()]; {
			case known == nil:
				families[family.GetName()] = family
			case known.GetType() == family.GetType():
				known.Metric = append(known.Metric, family.GetMetric()...)
			}
		}
	}
	if len(up.Metric) > 0 {
		families[nameUp] = up
	}
	all := make([]*dto.MetricFamily, 0, len(families))
	for _, name := range slices.Sorted(maps.Keys(families)) {
		all = append(all, families[name])
	}
	return all
}

// withProcess adds the process label to labels, in the order of names.
func withProcess(labels []*dto.LabelPair, process string) []*dto.LabelPair {
	for _, label := range labels {
		if label.GetName() == labelProcess {
			label.Name = proto.String(labelExported)
		}
	}
	labels = append(labels, &dto.LabelPair{Name: proto.String(labelProcess), Value: &process})
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return labels
}
