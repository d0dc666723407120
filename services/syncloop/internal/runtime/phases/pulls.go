package phases

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// pulls is how long images were pulled for a pod that has not started yet. Pulls that run side by side count once.
type pulls struct {
	running int
	since   time.Time
	total   time.Duration
}

// PullBegan notes that an image is about to be pulled for a pod, or waits for its turn.
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

// PullEnded notes the end of what PullBegan has noted, whether it succeeded or not.
func (b *Book) PullEnded(uid types.UID, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pulls[uid]
	if p == nil {
		return // the pod is gone
	}
	if p.running--; p.running == 0 {
		p.total += now.Sub(p.since)
	}
}

// TakePulls returns the time of the pulls of a pod that have ended, and drops what is known of its pulls.
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
