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
	// earliest and span define when a certificate is renewed: between 70 and 90 % of its lifetime, as for the kubelet.
	earliest, span = 0.7, 0.2
	// firstRetry and lastRetry are the first and the longest delay after a failure; the delay doubles in between.
	firstRetry = 2 * time.Second
	lastRetry  = 5 * time.Minute
	// keySigner is the log key of a signer's name.
	keySigner = "signer"
	// lookAgain is the interval at which the template is compared with the names of the current certificate.
	lookAgain = 10 * time.Second
)

// Config holds the parameters of a Manager.
type Config struct {
	Requester Requester
	// Template returns the certificate request; nil while it is not known. If the current certificate lacks DNS names or
	// IP addresses of the template, another one is requested.
	Template func() *x509.CertificateRequest
	// Renewed is called after each successful request; nil if it is not needed. Its error fails the request.
	Renewed func() error
	// Random returns a number in [0, 1). It keeps nodes that joined together from renewing at the same moment.
	Random func() float64
	Logger *slog.Logger
}

// Manager keeps a certificate valid. Create it with New and start it with Run.
type Manager struct {
	cfg     Config
	current atomic.Pointer[tls.Certificate]
	errs    atomic.Int64
	trouble atomic.Pointer[string]
}

// New returns a Manager with the certificate of the store. It logs a file that cannot be read, and replaces it.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg}
	certificate, err := cfg.Requester.Store.Load()
	switch {
	case err == nil:
		m.current.Store(certificate)
	case !errors.Is(err, fs.ErrNotExist):
		cfg.Logger.Warn("requesting another certificate because the present one cannot be used", telemetry.KeyError, err)
	}
	return m
}

// Current returns the certificate; nil if none is valid now.
func (m *Manager) Current() *tls.Certificate {
	certificate := m.current.Load()
	if certificate == nil || m.cfg.Requester.Clock.Now().After(certificate.Leaf.NotAfter) {
		return nil
	}
	return certificate
}

// Expires returns the expiration time of the certificate; zero without one.
func (m *Manager) Expires() time.Time {
	if certificate := m.current.Load(); certificate != nil {
		return certificate.Leaf.NotAfter
	}
	return time.Time{}
}

// Failures returns the number of failed requests.
func (m *Manager) Failures() int64 { return m.errs.Load() }

// Trouble returns why there is no newer certificate, in words for the operator; empty if nothing is wrong.
func (m *Manager) Trouble() string {
	if s := m.trouble.Load(); s != nil {
		return *s
	}
	return ""
}

// RenewAt returns the time to renew a certificate: at 70 % of its lifetime if random is 0, and at up to 90 % if it
// approaches 1.
func RenewAt(certificate *x509.Certificate, random float64) time.Time {
	life := certificate.NotAfter.Sub(certificate.NotBefore)
	return certificate.NotBefore.Add(time.Duration(float64(life) * (earliest + span*random)))
}

// Obtain requests a certificate until a valid one exists and Renewed has succeeded for it. It fails if ctx ends first.
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

// Run requests certificates until ctx ends. It retries failures with a delay that grows from 2 s to 5 min.
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

// renew returns zero after a success, and otherwise the delay before the next attempt.
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
			m.cfg.Logger.Info("obtained a certificate", keySigner, signer, "expires", certificate.Leaf.NotAfter)
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
	m.cfg.Logger.Warn("requesting a certificate again later", keySigner, m.cfg.Requester.Kind.Signer,
		telemetry.KeyError, err, telemetry.KeyRetryAfter, retry)
}

func (m *Manager) renewed() error {
	if m.cfg.Renewed == nil {
		return nil
	}
	return m.cfg.Renewed()
}

// renewAt returns the time to renew the certificate; zero without one.
func (m *Manager) renewAt() time.Time {
	if certificate := m.current.Load(); certificate != nil {
		return RenewAt(certificate.Leaf, m.cfg.Random())
	}
	return time.Time{}
}

// lacksNames reports whether the certificate lacks names of the template.
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
