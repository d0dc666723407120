package images

import "time"

// usedFor is how long a request for an image is remembered: far longer than the creation of a container takes.
const usedFor = time.Hour

// noteUse records that a container is about to be created from an image.
func (p *Puller) noteUse(ref string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[ref] = p.cfg.Clock.Now()
	if len(p.used) > maxRemembered {
		for ref, at := range p.used {
			if p.cfg.Clock.Since(at) > usedFor {
				delete(p.used, ref)
			}
		}
	}
}

// UsedAt returns when an image, by the runtime's ID, was last returned to a caller that creates a container from it;
// zero if that is long ago or never happened.
func (p *Puller) UsedAt(ref string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used[ref]
}

// Retire reports whether an image may be removed, because no caller got it after a time. Later callers get the
// runtime's answer and not a cached one.
func (p *Puller) Retire(ref string, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used[ref].After(since) {
		return false
	}
	for name, l := range p.present {
		if isDone(l) && l.image.Ref == ref {
			delete(p.present, name)
		}
	}
	return true
}
