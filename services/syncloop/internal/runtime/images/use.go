package images

import "time"

// usedFor is how long it is remembered that an image was asked for: far longer than a container takes to be made of it.
const usedFor = time.Hour

// noteUse notes that a container is about to be made of an image.
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

// UsedAt says when an image, by the runtime's ID, was last given to somebody who makes a container of it; zero when
// that was long ago or never.
func (p *Puller) UsedAt(ref string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used[ref]
}

// Retire says whether an image may be removed: nobody was given it after a time. Who asks for it from then on is told
// what the runtime says, and not what was remembered.
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
