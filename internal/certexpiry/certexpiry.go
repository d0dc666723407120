// Package certexpiry tells operators of certificates that expire soon: by a metric, and by warnings in the log. Each
// service watches the certificates that it shows to others, so that one which nobody renews is noticed before
// connections fail.
package certexpiry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/pemfiles"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// lookEvery is the pause between two looks at the certificates. Each costs one stat of each file.
	lookEvery = time.Minute
	// remindEvery is the pause between two warnings of one certificate.
	remindEvery = 24 * time.Hour
	// nearMost is the longest time before the expiry that is near. A tenth of a short lifetime is nearer: what rotates
	// certificates does so before nine tenths of it, as a kubelet does.
	nearMost, nearPart = 7 * 24 * time.Hour, 10
)

// Metric is the name of the metric.
const Metric = "quartet_certificate_expiration_timestamp_seconds"

// Certificate is one that is shown to others.
type Certificate struct {
	// Name is its flag or field, such as "tls-cert": the label of the metric, and a name in the log.
	Name string
	// File is its file, for the log; empty if there is none.
	File string
	// Current returns it; nil if there is none.
	Current func() *tls.Certificate
}

// OfFiles returns the certificate of the parts on the network; ok is false if there is none.
func OfFiles(files peertls.Files) (c Certificate, ok bool) {
	if !files.Given() {
		return Certificate{}, false
	}
	pair := pemfiles.Certificate(files.Cert, files.Key)
	return Certificate{Name: peertls.FlagCert, File: files.Cert, Current: func() *tls.Certificate {
		current, _, _ := pair.Get() // the last good one, which is in use while the files are not good
		return current
	}}, true
}

// Watcher watches a certificate.
type Watcher struct {
	certificate Certificate
	clock       clock.WithTicker
	logger      *slog.Logger

	// warned identifies what was warned of last, at a time.
	warned   state
	warnedAt time.Time
}

// state is the state of a certificate.
type state struct {
	serial  string
	expired bool
}

// New returns a Watcher of a certificate, whose metric is in the registry. Names are unique in a registry.
func New(certificate Certificate, registry prometheus.Registerer, c clock.WithTicker, logger *slog.Logger) *Watcher {
	w := &Watcher{certificate: certificate, clock: c, logger: logger}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: Metric, Help: "When a certificate that is shown to others expires, in seconds since 1970; 0 without one.",
		ConstLabels: prometheus.Labels{"certificate": certificate.Name},
	}, func() float64 {
		if leaf := w.leaf(); leaf != nil {
			return float64(leaf.NotAfter.Unix())
		}
		return 0
	}))
	return w
}

// Run warns until ctx ends, and returns nil then.
func (w *Watcher) Run(ctx context.Context) error {
	ticker := w.clock.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// look warns if the certificate has expired or soon does, and was not warned of in that state today.
func (w *Watcher) look(ctx context.Context) {
	leaf := w.leaf()
	if leaf == nil {
		return
	}
	now := w.clock.Now()
	left := leaf.NotAfter.Sub(now)
	if left > Near(leaf) {
		return
	}
	is := state{serial: leaf.SerialNumber.String(), expired: left <= 0}
	if is == w.warned && now.Sub(w.warnedAt) < remindEvery {
		return
	}
	w.warned, w.warnedAt = is, now
	text := "a certificate expires soon: renew it, or connections fail; its file is read again when it changes"
	if is.expired {
		text = "a certificate has expired, and connections fail: renew it; its file is read again when it changes"
	}
	w.logger.WarnContext(ctx, text, "certificate", w.certificate.Name, telemetry.KeyFile, w.certificate.File,
		"expires", leaf.NotAfter.UTC().Format(time.RFC3339))
}

// leaf returns the certificate; nil if there is none.
func (w *Watcher) leaf() *x509.Certificate {
	pair := w.certificate.Current()
	if pair == nil || len(pair.Certificate) == 0 {
		return nil
	}
	if pair.Leaf != nil {
		return pair.Leaf
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil // it was used, so it was parsed before
	}
	return leaf
}

// Near returns how long before its expiry a certificate is warned of: a tenth of its lifetime, and at most a week.
func Near(leaf *x509.Certificate) time.Duration {
	return min(leaf.NotAfter.Sub(leaf.NotBefore)/nearPart, nearMost)
}
