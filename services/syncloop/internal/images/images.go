// Package images gets the images of containers into the runtime, by pull policy, with a back-off after failed pulls and
// a limit on how many are pulled at the same time. Its only state is that back-off, which may be lost: a restarted process
// tries again at once.
package images

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/distribution/reference"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/metrics"
)

// Reasons of a waiting container, as the kubelet shows them.
const (
	ReasonInvalidName  = "InvalidImageName"
	ReasonInspect      = "ImageInspectError"
	ReasonNeverPull    = "ErrImageNeverPull"
	ReasonPull         = "ErrImagePull"
	ReasonPullBackOff  = "ImagePullBackOff"
	presentFor         = time.Second // an image that was just seen in the runtime is not asked for again
	defaultConcurrency = 1           // serializeImagePulls
)

// Config is what a Puller needs.
type Config struct {
	// Images hands out the runtime's image service, or says why there is none. Required.
	Images func() (internalapi.ImageManagerService, error)
	// Clock is the time. Required.
	Clock clock.Clock
	// Tracer makes the spans, Calls those of calls. Required.
	Tracer trace.Tracer
	Calls  cri.Caller
	// Logger tells of pulls. Required.
	Logger *slog.Logger
	// Metrics counts and times pulls. Required.
	Metrics *metrics.Metrics
	// Serial pulls one image after another; else MaxParallel at a time, 0 being no limit.
	Serial      bool
	MaxParallel int
}

// Image is an image that the runtime has.
type Image struct {
	// Ref is the runtime's ID of it.
	Ref string
	// Size is its size in bytes, 0 when the runtime does not say.
	Size uint64
	// User is who it runs as by itself.
	User containerspec.ImageUser
}

// Error says why an image could not be had.
type Error struct {
	// Reason is the reason of the waiting container; Message goes with it.
	Reason, Message string
	// RetryAfter is the time to the next try; 0 leaves it to the caller.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Reason, e.Message) }

// ErrorType is the error.type of a span that failed of it.
func (e *Error) ErrorType() string { return e.Reason }

// Request is what is asked for.
type Request struct {
	// PodUID is the pod's UID: each pod has its own back-off.
	PodUID types.UID
	// Image is the name in the spec, Policy its pull policy.
	Image  string
	Policy v1.PullPolicy
	// Sandbox is the configuration of the pod's sandbox, which some runtimes want to know on a pull.
	Sandbox *runtimeapi.PodSandboxConfig
}

// Puller gets images.
type Puller struct {
	cfg   Config
	slots chan struct{} // nil is no limit

	mu      sync.Mutex
	present map[string]*lookup
	backoff map[backoffKey]*backoff
}

// New makes a Puller. It starts nothing.
func New(cfg Config) *Puller {
	p := &Puller{cfg: cfg, present: map[string]*lookup{}, backoff: map[backoffKey]*backoff{}}
	switch {
	case cfg.Serial:
		p.slots = make(chan struct{}, defaultConcurrency)
	case cfg.MaxParallel > 0:
		p.slots = make(chan struct{}, cfg.MaxParallel)
	}
	return p
}

// Ensure has the image in the runtime, pulling it when its policy says so. It fails with an *Error, or with the error of
// ctx when that ends first.
func (p *Puller) Ensure(ctx context.Context, r Request) (Image, error) {
	name, err := withTag(r.Image)
	if err != nil {
		return Image{}, &Error{Reason: ReasonInvalidName, Message: fmt.Sprintf("Failed to apply default image tag %q: %v", r.Image, err)}
	}
	if r.Policy != v1.PullAlways {
		image, found, err := p.lookUp(ctx, name)
		switch {
		case ctx.Err() != nil:
			return Image{}, ctx.Err()
		case err != nil:
			return Image{}, &Error{Reason: ReasonInspect, Message: fmt.Sprintf("Failed to inspect image %q: %v", name, err)}
		case found:
			return image, nil
		case r.Policy == v1.PullNever:
			return Image{}, &Error{Reason: ReasonNeverPull, Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", name)}
		}
	}
	key := backoffKey{pod: r.PodUID, image: name}
	if wait, last := p.waiting(key); wait > 0 {
		return Image{}, &Error{Reason: ReasonPullBackOff, Message: fmt.Sprintf("Back-off pulling image %q: %s", name, last), RetryAfter: wait}
	}
	begun := p.cfg.Clock.Now()
	p.cfg.Metrics.PullBegan(r.PodUID, begun)
	image, err := p.pull(ctx, name, r)
	p.cfg.Metrics.PullEnded(r.PodUID, p.cfg.Clock.Now())
	if err == nil {
		p.cfg.Metrics.Pulled(image.Size, p.cfg.Clock.Since(begun))
		p.succeeded(key)
		return image, nil
	}
	if ctx.Err() != nil {
		return Image{}, ctx.Err() // who gave up has not learned anything of the image
	}
	p.cfg.Metrics.PullFailed()
	failure := &Error{Reason: ReasonPull, Message: fmt.Sprintf("failed to pull image %q: %v", name, err)}
	failure.RetryAfter = p.failed(key, failure.Error())
	return Image{}, failure
}

// withTag completes an image's name by the tag latest when it has neither tag nor digest.
func withTag(image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", err
	}
	if reference.IsNameOnly(named) {
		return image + ":latest", nil
	}
	return image, nil
}

// pull pulls an image, when it is its turn.
func (p *Puller) pull(ctx context.Context, name string, r Request) (image Image, err error) {
	about := telemetry.Subject{Image: name}
	ctx, span := telemetry.Start(ctx, p.cfg.Tracer, "image.pull", about)
	defer func() { telemetry.End(span, err) }()
	if p.slots != nil {
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
		case <-ctx.Done():
			return Image{}, ctx.Err()
		}
	}
	service, err := p.cfg.Images()
	if err != nil {
		return Image{}, err
	}
	start := p.cfg.Clock.Now()
	p.cfg.Logger.InfoContext(ctx, "pulling an image", telemetry.KeyImage, name, telemetry.KeyPodUID, string(r.PodUID))
	err = p.cfg.Calls.Call(ctx, runtimeapi.ImageService_PullImage_FullMethodName, about, nil, func(ctx context.Context) error {
		_, err := service.PullImage(ctx, &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}, nil, r.Sandbox)
		return err
	})
	if err != nil {
		p.cfg.Logger.WarnContext(ctx, "an image could not be pulled", telemetry.KeyImage, name, telemetry.KeyError, err)
		return Image{}, err
	}
	p.cfg.Logger.InfoContext(ctx, "pulled an image", telemetry.KeyImage, name, telemetry.KeyDuration, p.cfg.Clock.Since(start))
	p.mu.Lock()
	delete(p.present, name) // a tag may have moved
	p.mu.Unlock()
	image, found, err := p.lookUp(ctx, name)
	if err == nil && !found {
		err = fmt.Errorf("the runtime does not have the image that it has just pulled")
	}
	return image, err
}
