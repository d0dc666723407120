package metrics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

// exportedPrefix is Prometheus' prefix for a sample's label that collides with a label of the target.
const exportedPrefix = "exported_"

// Answer is the response of a process to a scrape.
type Answer struct {
	// Process is the name of the process.
	Process string
	// Families are its metrics. Merger.Merge changes them. Err is why there are none.
	Families []*dto.MetricFamily
	Err      error
}

// Merger merges the metrics of several processes into one exposition.
type Merger struct {
	// Label is the label with the name of the process. A sample's own label of that name gets the prefix exported_, unless
	// it has the same value.
	Label string
	// Up is the name of the metric that reports which processes answered: 1, or 0. Help is its help text.
	Up, Help string
}

// Merge returns the metrics of own, unchanged and without the label, together with those of the answers, sorted by
// name. Families of the same name become one. A name can have only one type: if the types of two processes differ, as
// during an upgrade, the first one's family is used, and conflicts names the other.
func (m Merger) Merge(own []*dto.MetricFamily, answers []Answer) (families []*dto.MetricFamily, conflicts []error) {
	byName := map[string]*dto.MetricFamily{}
	for _, family := range own {
		// The list of metrics is cloned because other gatherers may share it.
		byName[family.GetName()] = &dto.MetricFamily{
			Name: family.Name, Help: family.Help, Type: family.Type, Unit: family.Unit,
			Metric: slices.Clone(family.GetMetric()),
		}
	}
	up := &dto.MetricFamily{Name: &m.Up, Help: &m.Help, Type: dto.MetricType_GAUGE.Enum()}
	for _, a := range answers {
		value := 1.0
		if a.Err != nil {
			value = 0
		}
		up.Metric = append(up.Metric, &dto.Metric{Label: m.label(nil, a.Process), Gauge: &dto.Gauge{Value: &value}})
		for _, family := range a.Families {
			for _, metric := range family.GetMetric() {
				metric.Label = m.label(metric.GetLabel(), a.Process)
			}
			switch known := byName[family.GetName()]; {
			case known == nil:
				byName[family.GetName()] = family
			case known.GetType() != family.GetType():
				conflicts = append(conflicts, fmt.Errorf(
					"%s: its %s is left out: it is a %s, and a %s in another service: do the services have one version?",
					a.Process, family.GetName(), family.GetType(), known.GetType(),
				))
			default:
				known.Metric = append(known.Metric, family.GetMetric()...)
			}
		}
	}
	if len(up.Metric) > 0 {
		byName[m.Up] = up
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		families = append(families, byName[name])
	}
	return families, conflicts
}

// label adds the label of a process to labels, in the order of names.
func (m Merger) label(labels []*dto.LabelPair, process string) []*dto.LabelPair {
	for _, label := range labels {
		if label.GetName() != m.Label {
			continue
		}
		if label.GetValue() == process {
			return labels
		}
		label.Name = proto.String(exportedPrefix + m.Label)
	}
	labels = append(labels, &dto.LabelPair{Name: &m.Label, Value: &process})
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return labels
}
