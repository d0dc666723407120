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
	// togetherTimeout is how long each other process has to answer: less than half of the shortest timeout that people give
	// Prometheus. All are asked at once.
	togetherTimeout = 3 * time.Second
	// labelProcess says of which other process a sample is. It is not "service", which Prometheus gives to what it finds by a service of
	// a cluster: where a target's labels are honored, one of that name would hide it.
	labelProcess = "process"
	// labelExported is what a label of a sample's own is called that has the name of that.
	labelExported = "exported_process"
	// nameUp is the metric that says which of the others have answered.
	nameUp = "quartet_process_up"
)

// Together gathers the metrics of this process and of others of the node, as one kubelet has them. Samples of this process are as they
// are; those of another have the label process, so that two processes that count the same do not have one sample of two values, and a
// sample has the same name for each process that answers.
type Together struct {
	// Own has the metrics of this process.
	Own prometheus.Gatherer
	// Others has the metrics addresses of the other processes, by their names.
	Others map[string]string
	// Logger is told why there are no metrics of a process, in its details.
	Logger *slog.Logger
}

// answer is what a process said.
type answer struct {
	process  string
	families []*dto.MetricFamily
	err      error
}

// Gather implements prometheus.Gatherer. A process that does not answer in time, or not at all, is left out and is no error.
func (t Together) Gather() ([]*dto.MetricFamily, error) {
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

// together makes one exposition of what this process has and the others have answered, in the order of the names. A family that another
// process has of a different type, as while one of them is being upgraded, is left out: there can be only one type.
func together(own []*dto.MetricFamily, answers []answer) []*dto.MetricFamily {
	families := map[string]*dto.MetricFamily{}
	for _, family := range own {
		// What a registry has gathered may be shared with others who gather.
		families[family.GetName()] = &dto.MetricFamily{Name: family.Name, Help: family.Help, Type: family.Type, Unit: family.Unit, Metric: slices.Clone(family.GetMetric())}
	}
	up := &dto.MetricFamily{Name: proto.String(nameUp), Help: proto.String("1 when the other process gave its metrics for this answer, 0 when it did not."), Type: dto.MetricType_GAUGE.Enum()}
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

// withProcess returns the labels with that of the process, in the order of their names.
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
