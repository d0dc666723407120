package images

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The kubelet's numbers: the first and the longest back-off of a pull, and the time without a failure after which a
// back-off is dropped.
const (
	backoffBase   = 10 * time.Second
	backoffMax    = 5 * time.Minute
	backoffForget = 2 * backoffMax
)

type backoffKey struct {
	pod   types.UID
	image string
}

type backoff struct {
	delay time.Duration
	since time.Time
	last  string
}

// waiting returns how long a pull is still delayed by its back-off, and the message of the last failure.
func (p *Puller) waiting(key backoffKey) (time.Duration, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.backoff[key]
	if b == nil {
		return 0, ""
	}
	return b.delay - p.cfg.Clock.Since(b.since), b.last
}

// failed records a failure and returns the new back-off.
func (p *Puller) failed(key backoffKey, message string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgetOld()
	b := p.backoff[key]
	if b == nil {
		b = &backoff{delay: backoffBase / 2}
		p.backoff[key] = b
	}
	b.delay, b.since, b.last = min(2*b.delay, backoffMax), p.cfg.Clock.Now(), message
	return b.delay
}

func (p *Puller) succeeded(key backoffKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.backoff, key)
}

// Forget drops the back-offs of a removed pod.
func (p *Puller) Forget(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.backoff {
		if key.pod == pod {
			delete(p.backoff, key)
		}
	}
}

// forgetOld drops back-offs without a recent failure, so that the map is bounded by the pods of the last minutes. It
// also drops old lookups. The caller holds the lock.
func (p *Puller) forgetOld() {
	for key, b := range p.backoff {
		if p.cfg.Clock.Since(b.since) > backoffForget {
			delete(p.backoff, key)
		}
	}
	for name, l := range p.present {
		if isDone(l) && p.cfg.Clock.Now().After(l.until) {
			delete(p.present, name)
		}
	}
}
