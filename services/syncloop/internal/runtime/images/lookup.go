package images

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// maxRemembered is the number of remembered images above which old ones are dropped.
	maxRemembered = 100
	// lookupTimeout is how long a caller waits for another caller's lookup: many times the duration of a lookup.
	lookupTimeout = time.Second
)

// lookup is one lookup of an image in the runtime, shared by concurrent callers.
type lookup struct {
	done  chan struct{} // closed when the fields below are set
	image Image
	found bool
	err   error
	until time.Time // until then the result is valid without another lookup
}

// lookUp returns an image of the runtime. Concurrent callers share one lookup, and a found image is cached for
// presentFor. A lookup that hangs delays other callers by at most lookupTimeout.
func (p *Puller) lookUp(ctx context.Context, name string) (Image, bool, error) {
	for {
		p.mu.Lock()
		l := p.present[name]
		if l == nil || (isDone(l) && p.cfg.Clock.Now().After(l.until)) {
			l = &lookup{done: make(chan struct{})}
			p.present[name] = l
			p.mu.Unlock()
			p.ask(ctx, name, l)
			return l.image, l.found, l.err
		}
		p.mu.Unlock()
		if err := p.await(ctx, name, l); err != nil {
			return Image{}, false, err
		}
		if isDone(l) && l.err == nil && l.found {
			return l.image, true, nil
		}
		// The other lookup may have failed, or the image may exist by now: look it up again.
	}
}

// await waits for another caller's lookup. If that takes too long, the next caller starts a new one.
func (p *Puller) await(ctx context.Context, name string, l *lookup) error {
	timer := p.cfg.Clock.NewTimer(lookupTimeout)
	defer timer.Stop()
	select {
	case <-l.done:
		return nil
	case <-timer.C():
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.present[name] == l {
			delete(p.present, name)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func isDone(l *lookup) bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (p *Puller) ask(ctx context.Context, name string, l *lookup) {
	l.image, l.found, l.err = p.status(ctx, name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.present) > maxRemembered {
		p.forgetOld()
	}
	if l.found && l.err == nil {
		l.until = p.cfg.Clock.Now().Add(presentFor)
	} else if p.present[name] == l {
		delete(p.present, name)
	}
	close(l.done)
}

func (p *Puller) status(ctx context.Context, name string) (image Image, found bool, err error) {
	service, err := p.cfg.Images()
	if err != nil {
		return Image{}, false, err
	}
	var response *runtimeapi.ImageStatusResponse
	const method = runtimeapi.ImageService_ImageStatus_FullMethodName
	err = p.cfg.Calls.Call(ctx, method, telemetry.Subject{Image: name}, nil, func(ctx context.Context) (err error) {
		response, err = service.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: name}, false)
		return err
	})
	if err != nil || response.GetImage() == nil {
		return Image{}, false, err
	}
	image.Ref, image.Size = response.GetImage().GetId(), response.GetImage().GetSize()
	switch uid, name := response.GetImage().GetUid(), response.GetImage().GetUsername(); {
	case uid != nil:
		image.User.UID = &uid.Value
	case name != "":
		image.User.Name = name
	default: // an image without a user runs as root
		image.User.UID = new(int64)
	}
	return image, true, nil
}
