package runtimestate

import "github.com/prometheus/client_golang/prometheus"

// Expose registers metrics of the runtime's last status.
func (w *Watcher) Expose(registry prometheus.Registerer) {
	gauge := func(name, help string, value func() bool) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if value() {
				return 1
			}
			return 0
		}))
	}
	gauge("quartet_pleg_runtime_ready", "1 while the container runtime reports that it can run pods.", func() bool {
		_, reason := w.State()
		return reason == ""
	})
	gauge(
		"quartet_pleg_runtime_network_ready",
		"1 while the container runtime reports that its network is ready.",
		func() bool {
			state, _ := w.State()
			return state.GetNetworkReady()
		},
	)
}
