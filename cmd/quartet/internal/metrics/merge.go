package metrics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/quartet-node/quartet/internal/layout"
)

const (
	labelService = "service"
	// labelExported is Prometheus' name for a sample's label that collides with a label of the target.
	labelExported = "exported_service"
	upName        = "quartet_up"
	upHelp        = "1 if the service answered this request, 0 if it did not."
)

// merge merges the services' answers into one exposition, sorted by metric: families of the same name become one, each
// sample gets the label service, and quartet_up reports which service answered. If the types of two services differ, as
// during an upgrade, the first one's metric is used, and problems names the other.
func merge(answers []answer) (families []*dto.MetricFamily, problems []error) {
	byName := map[string]*dto.MetricFamily{}
	up := &dto.MetricFamily{Name: proto.String(upName), Help: proto.String(upHelp), Type: dto.MetricType_GAUGE.Enum()}
	for _, a := range answers {
		value := 1.0
		if a.err != nil {
			value = 0
		}
		up.Metric = append(up.Metric, &dto.Metric{Label: withService(nil, a.service), Gauge: &dto.Gauge{Value: &value}})
		for _, family := range a.families {
			for _, metric := range family.GetMetric() {
				metric.Label = withService(metric.GetLabel(), a.service)
			}
			switch known := byName[family.GetName()]; {
			case known == nil:
				byName[family.GetName()] = family
			case known.GetType() != family.GetType():
				problems = append(
					problems,
					fmt.Errorf("%s: its %s is left out: it is a %s, and a %s in another service: do the services have one version?",
						a.service, family.GetName(), family.GetType(), known.GetType()),
				)
			default:
				known.Metric = append(known.Metric, family.GetMetric()...)
			}
		}
	}
	byName[upName] = up
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		families = append(families, byName[name])
	}
	return families, problems
}

// withService adds the label service to labels. An existing label of that name is renamed, unless it has the same
// value.
func withService(labels []*dto.LabelPair, service layout.Service) []*dto.LabelPair {
	for _, label := range labels {
		if label.GetName() != labelService {
			continue
		}
		if label.GetValue() == string(service) {
			return labels
		}
		label.Name = proto.String(labelExported)
	}
	labels = append(labels, &dto.LabelPair{Name: proto.String(labelService), Value: proto.String(string(service))})
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return labels
}
