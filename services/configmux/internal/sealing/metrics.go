package sealing

import "github.com/prometheus/client_golang/prometheus"

// Expose registers the metric of the keyring, which looks at the file when somebody asks.
func (k *Keyring) Expose(registry prometheus.Registerer) {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quartet_configmux_secrets_key_changed_timestamp_seconds",
		Help: "When the key that encrypts secrets on the disk was made or rotated last, in seconds since 1970; 0 while there is none.",
	}, func() float64 {
		at := k.changedAt()
		if at.IsZero() {
			return 0
		}
		return float64(at.Unix())
	}))
}
