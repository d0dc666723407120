package certificates

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// earliest and span say in which part of its life a certificate is renewed: from 70 to 90 % of it, as a kubelet does.
	earliest, span = 0.7, 0.2
	// firstRetry and lastRetry are the first and the longest wait after a failure; it doubles between.
	firstRetry = 2 * time.Second
	lastRetry  = 5 * time.Minute
	// keySigner is the log's key of a signer's name.
	keySigner = "signer"
	// lookAgain is how often the template is read for names that the current certificate lacks.
	lookAgain = 10 * time.Second
)

// Config is for a Manager.
type Config struct {
	Requester Requester
	// Template says what to have signed; nil while that cannot be said. When the current certificate has other names (DNS names and IP
	// addresses) than it, another one is requested.
	Template func() *x509.CertificateRequest
	// Renewed is called after each request that has worked; nil for nothing. What it fails with fails the request.
	Renewed func() error
	// Random gives a number of at least 0 and less than 1: nodes that joined together are not all to renew at one moment.
	Random func() float64
	Logger *slog.Logger
}

// Manager keeps a certificate valid. Make it with New and have it Run.
type Manager struct {
	cfg     Config
	current atomic.Pointer[tls.Certificate]
	errs    atomic.Int64
	trouble atomic.Pointer[string]
}

// New returns a manager that has what the store has. A file that cannot be read is told in the log, and replaced.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg}
	certificate, err := cfg.Requester.Store.Load()
	switch {
	case err == nil:
		m.current.Store(certificate)
	case !errors.Is(err, fs.ErrNotExist):
		cfg.Logger.Warn("requesting a certificate anew, for the one there is cannot be used", telemetry.KeyError, err)
	}
	return m
}

// Current returns the certificate, and nil when there is none that is valid now.
func (m *Manager) Current() *tls.Certificate {
	certificate := m.current.Load()
	if certificate == nil || m.cfg.Requester.Clock.Now().After(certificate.Leaf.NotAfter) {
		return nil
	}
	return certificate
}

// Expires returns when the certificate does, the zero time without one.
func (m *Manager) Expires() time.Time {
	if certificate := m.current.Load(); certificate != nil {
		return certificate.Leaf.NotAfter
	}
	return time.Time{}
}

// Failures returns how many requests have failed.
func (m *Manager) Failures() int64 { return m.errs.Load() }

// Trouble says why there is no newer certificate, in words for the operator; empty when nothing is wrong.
func (m *Manager) Trouble() string {
	if s := m.trouble.Load(); s != nil {
		return *s
	}
	return ""
}

// RenewAt returns when a certificate is to be renewed: after 70 % of its life when random is 0, up to 90 % when it is 1.
func RenewAt(certificate *x509.Certificate, random float64) time.Time {
	life := certificate.NotAfter.Sub(certificate.NotBefore)
	return certificate.NotBefore.Add(time.Duration(float64(life) * (earliest + span*random)))
}

// Obtain requests a certificate until there is one that is valid, and then sees to it that Renewed has worked for it. It fails when
// ctx ends before.
func (m *Manager) Obtain(ctx context.Context) error {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		if m.Current() != nil {
			err := m.renewed()
			if err == nil {
				return nil
			}
			m.failed(err, retry)
		} else if m.renew(ctx, m.cfg.Template(), retry) == 0 {
			return nil
		}
		timer := m.cfg.Requester.Clock.NewTimer(retry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C():
		}
	}
}

// Run requests certificates until ctx ends. What fails is made again, 2 s later at first and 5 min in the end.
func (m *Manager) Run(ctx context.Context) {
	retry := firstRetry
	at := m.renewAt()
	for {
		template := m.cfg.Template()
		now := m.cfg.Requester.Clock.Now()
		wait := min(at.Sub(now), lookAgain)
		if template != nil && (wait <= 0 || m.lacksNames(template)) {
			if wait = m.renew(ctx, template, retry); wait > 0 {
				retry = min(2*retry, lastRetry)
			} else {
				retry, at = firstRetry, m.renewAt()
				continue
			}
		}
		timer := m.cfg.Requester.Clock.NewTimer(max(wait, time.Second))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// renew returns zero when it has worked, and otherwise how long to wait before the next try.
func (m *Manager) renew(ctx context.Context, template *x509.CertificateRequest, retry time.Duration) time.Duration {
	signer := m.cfg.Requester.Kind.Signer
	m.cfg.Logger.Info("requesting a certificate", keySigner, signer)
	err := m.cfg.Requester.Request(ctx, template)
	if err == nil {
		err = m.renewed()
	}
	if err == nil {
		var certificate *tls.Certificate
		if certificate, err = m.cfg.Requester.Store.Load(); err == nil {
			m.current.Store(certificate)
			m.trouble.Store(nil)
			m.cfg.Logger.Info("have a certificate", keySigner, signer, "expires", certificate.Leaf.NotAfter)
			return 0
		}
	}
	if ctx.Err() == nil {
		m.failed(err, retry)
	}
	return retry
}

func (m *Manager) failed(err error, retry time.Duration) {
	m.errs.Add(1)
	trouble := err.Error()
	m.trouble.Store(&trouble)
	m.cfg.Logger.Warn("requesting a certificate again later", keySigner, m.cfg.Requester.Kind.Signer, telemetry.KeyError, err, telemetry.KeyRetryAfter, retry)
}

func (m *Manager) renewed() error {
	if m.cfg.Renewed == nil {
		return nil
	}
	return m.cfg.Renewed()
}

// renewAt returns when the certificate is to be renewed, the zero time without one.
func (m *Manager) renewAt() time.Time {
	if certificate := m.current.Load(); certificate != nil {
		return RenewAt(certificate.Leaf, m.cfg.Random())
	}
	return time.Time{}
}

// lacksNames reports whether the certificate is for others than the template's names.
func (m *Manager) lacksNames(template *x509.CertificateRequest) bool {
	certificate := m.current.Load()
	return certificate != nil && (!sets.New(certificate.Leaf.DNSNames...).Equal(sets.New(template.DNSNames...)) ||
		!texts(certificate.Leaf.IPAddresses).Equal(texts(template.IPAddresses)) ||
		(template.Subject.CommonName != "" && certificate.Leaf.Subject.CommonName != template.Subject.CommonName))
}

func texts(addresses []net.IP) sets.Set[string] {
	out := sets.New[string]()
	for _, address := range addresses {
		out.Insert(address.String())
	}
	return out
}
