package sealing

import "github.com/prometheus/client_golang/prometheus"

// Expose registers the metric of the keyring, which reads the file's time when it is gathered.
func (k *Keyring) Expose(registry prometheus.Registerer) {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quartet_configmux_secrets_key_changed_timestamp_seconds",
		Help: "Time when the key that encrypts secrets on disk was created or last rotated, in seconds since 1970; 0 if there is none.",
	}, func() float64 {
		at := k.changedAt()
		if at.IsZero() {
			return 0
		}
		return float64(at.Unix())
	}))
}
