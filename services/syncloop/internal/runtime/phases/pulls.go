package phases

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// pulls is the total duration of the image pulls of a pod that has not started yet. Concurrent pulls count once.
type pulls struct {
	running int
	since   time.Time
	total   time.Duration
}

// PullBegan records that a pull for a pod begins or waits for its turn.
func (b *Book) PullBegan(uid types.UID, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pulls[uid]
	if p == nil {
		p = &pulls{}
		b.pulls[uid] = p
	}
	if p.running++; p.running == 1 {
		p.since = now
	}
}

// PullEnded records the end of such a pull, successful or not.
func (b *Book) PullEnded(uid types.UID, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pulls[uid]
	if p == nil {
		return // the pod was removed
	}
	if p.running--; p.running == 0 {
		p.total += now.Sub(p.since)
	}
}

// TakePulls returns the total duration of a pod's ended pulls, and drops the record.
func (b *Book) TakePulls(uid types.UID) time.Duration {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pulls[uid]
	delete(b.pulls, uid)
	if p == nil {
		return 0
	}
	return p.total
}
