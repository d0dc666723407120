package images

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// maxRemembered is how many images are remembered before those of the past are dropped.
	maxRemembered = 100
	// patience is how long anybody waits for the answer to somebody else's question: many times what the runtime takes.
	patience = time.Second
)

// lookup is one question to the runtime for an image, shared by all who ask at that moment.
type lookup struct {
	done  chan struct{} // closed when the rest is set
	image Image
	found bool
	err   error
	until time.Time // while this holds, the answer is taken without asking again
}

// lookUp asks the runtime for an image. Pods that start together ask once: an answer that the image is there holds for
// presentFor. A question that hangs holds up nobody but who has asked it.
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
		// Its asker may have given up, or the image have come since: ask again.
	}
}

// await waits for the answer to somebody else's question. When that takes too long, whoever comes next asks anew.
func (p *Puller) await(ctx context.Context, name string, l *lookup) error {
	timer := p.cfg.Clock.NewTimer(patience)
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
	err = p.cfg.Calls.Call(ctx, runtimeapi.ImageService_ImageStatus_FullMethodName, telemetry.Subject{Image: name}, nil, func(ctx context.Context) (err error) {
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
	default: // an image that names nobody runs as root
		image.User.UID = new(int64)
	}
	return image, true, nil
}
