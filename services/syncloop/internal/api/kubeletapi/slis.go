package kubeletapi

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/healthz"
)

// slis counts the results of the health checks of /healthz, as the components of Kubernetes do at /metrics/slis.
type slis struct {
	result *prometheus.GaugeVec
	total  *prometheus.CounterVec
}

// sliType is the value of the label for the path of the checks.
const sliType = "healthz"

// newSLIs returns slis without results.
func newSLIs(registry prometheus.Registerer) *slis {
	s := &slis{
		result: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_healthcheck", Help: "1 if the check succeeded at the last request of /healthz, otherwise 0."}, []string{"name", "type"}),
		total:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubernetes_healthchecks_total", Help: "Results of the checks of /healthz."}, []string{"name", "type", "status"}),
	}
	registry.MustRegister(s.result, s.total)
	return s
}

// counted returns checks that count their results.
func (s *slis) counted(checks ...healthz.Check) []healthz.Check {
	counted := make([]healthz.Check, 0, len(checks))
	for _, check := range checks {
		counted = append(counted, healthz.Check{Name: check.Name, Do: func() error {
			err := check.Do()
			result, status := 1.0, "success"
			if err != nil {
				result, status = 0, "error"
			}
			s.result.WithLabelValues(check.Name, sliType).Set(result)
			s.total.WithLabelValues(check.Name, sliType, status).Inc()
			return err
		}})
	}
	return counted
}
