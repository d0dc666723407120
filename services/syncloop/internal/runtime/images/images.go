// Package images pulls the images of containers by their pull policies, with the credentials of the node and of the
// pod. It backs off after failed pulls, limits concurrent pulls, and records the kubelet's events. Its only state is
// the back-offs and the times when images were last requested. It may be lost: a restarted process retries at once.
//
// Package imagegc removes unused images, and asks this package which images are about to be used.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/pullrecords"
)

// Reasons of a waiting container, as in the kubelet.
const (
	ReasonInvalidName = "InvalidImageName"
	ReasonInspect     = "ImageInspectError"
	ReasonNeverPull   = "ErrImageNeverPull"
	ReasonPull        = "ErrImagePull"
	ReasonPullBackOff = "ImagePullBackOff"
)

// Reasons of events, as in the kubelet. ReasonNeverPull is one, too.
const (
	eventPulling       = "Pulling"
	eventPulled        = "Pulled"
	eventFailed        = "Failed"
	eventInspectFailed = "InspectFailed"
	eventBackOff       = "BackOff"
)

const (
	presentFor         = time.Second // for this time after a lookup, an image is not looked up again
	defaultConcurrency = 1           // the default of serializeImagePulls
)

// Events records events about pods; *podevents.Recorder implements it.
type Events interface {
	// Normal and Warning record an event of a container. The reason is one word, the message a sentence.
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

// Config holds the dependencies and settings of a Puller.
type Config struct {
	// Images returns the runtime's image service, or an error while there is none. Required.
	Images func() (internalapi.ImageManagerService, error)
	// Clock is the time. Required.
	Clock clock.Clock
	// Tracer creates spans. Calls makes the runtime calls. Required.
	Tracer trace.Tracer
	Calls  cri.Caller
	// Logger logs pulls. Required.
	Logger *slog.Logger
	// Metrics counts and times pulls; nil counts nothing.
	Metrics *Metrics
	// Phases records the pulls of each pod; nil records nothing.
	Phases *phases.Book
	// Events records events about pulls; nil discards them.
	Events Events
	// Credentials returns the node's credentials for a repository, for example "registry.example.com/shop/web", the best
	// first. They are tried in this order. If there are none, the image is pulled without credentials. Credentials is
	// called before each pull; nil returns none.
	Credentials func(ctx context.Context, repository string) []*runtimeapi.AuthConfig
	// Providers is also called before each pull. Its credentials are tried last. Nil returns none.
	Providers Providers
	// Serial pulls one image at a time; otherwise MaxParallel limits concurrent pulls, 0 is no limit.
	Serial      bool
	MaxParallel int
	// Records knows which credentials images were pulled with, and decides which pods may use them. With nil, every pod
	// may use every image.
	Records *pullrecords.Book
	// QPS limits the pulls that begin per second, Burst the pulls that begin at once; a pull above the limit fails. A QPS
	// of 0 is no limit.
	QPS   float32
	Burst int
}

// Image is an image in the runtime.
type Image struct {
	// Ref is the runtime's ID.
	Ref string
	// Size is the size in bytes, 0 if the runtime does not report it.
	Size uint64
	// User is the user that the image runs as by default.
	User containerspec.ImageUser
}

// Error is the error of an image that is not available.
type Error struct {
	// Reason is the reason of the waiting container; Message goes with it.
	Reason, Message string
	// RetryAfter is the time until the next try; 0 leaves the decision to the caller.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Reason, e.Message) }

// ErrorType returns the error.type of the failed span.
func (e *Error) ErrorType() string { return e.Reason }

// Request is a request for an image.
type Request struct {
	// Pod is the pod: each pod has its own back-off. Container is the name of the container.
	Pod       *v1.Pod
	Container string
	// Image is the image in the spec, Policy its pull policy.
	Image  string
	Policy v1.PullPolicy
	// Secrets are the pod's pull secrets. Their credentials are tried before the node's.
	Secrets []*v1.Secret
	// Sandbox is the configuration of the pod's sandbox, which some runtimes need for a pull.
	Sandbox *runtimeapi.PodSandboxConfig
}

// Puller pulls images. Its methods may be called from any goroutine.
type Puller struct {
	cfg   Config
	slots chan struct{}           // nil is no limit
	rate  flowcontrol.RateLimiter // nil is no limit

	mu      sync.Mutex
	present map[string]*lookup
	backoff map[backoffKey]*backoff
	used    map[string]time.Time // by the runtime's ID
}

// New returns a Puller. It starts nothing.
func New(cfg Config) *Puller {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	if cfg.Credentials == nil {
		cfg.Credentials = func(context.Context, string) []*runtimeapi.AuthConfig { return nil }
	}
	p := &Puller{cfg: cfg, present: map[string]*lookup{}, backoff: map[backoffKey]*backoff{}, used: map[string]time.Time{}}
	if cfg.QPS > 0 {
		p.rate = flowcontrol.NewTokenBucketRateLimiterWithClock(cfg.QPS, cfg.Burst, sleepless{cfg.Clock})
	}
	switch {
	case cfg.Serial:
		p.slots = make(chan struct{}, defaultConcurrency)
	case cfg.MaxParallel > 0:
		p.slots = make(chan struct{}, cfg.MaxParallel)
	}
	return p
}

// sleepless is a clock for a rate limiter that never blocks.
type sleepless struct{ clock.Clock }

// Sleep implements flowcontrol.Clock.
func (sleepless) Sleep(time.Duration) {}

// noopEvents is an Events that discards events.
type noopEvents struct{}

func (noopEvents) Normal(context.Context, *v1.Pod, string, string, string)  {}
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// Ensure returns the image after pulling it if the policy requires it. It fails with an *Error, or with the error of
// ctx.
func (p *Puller) Ensure(ctx context.Context, r Request) (Image, error) {
	image, err := p.ensure(ctx, r)
	if failure := (*Error)(nil); errors.As(err, &failure) {
		p.cfg.Events.Warning(ctx, r.Pod, r.Container, eventFailed, "Error: "+failure.Reason)
	}
	if err == nil {
		p.noteUse(image.Ref)
	}
	return image, err
}

func (p *Puller) ensure(ctx context.Context, r Request) (Image, error) {
	name, repository, err := complete(r.Image)
	if err != nil {
		return Image{}, p.refused(ctx, r, eventInspectFailed,
			&Error{Reason: ReasonInvalidName, Message: fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %[1]q: %[2]v", r.Image, err)})
	}
	// The providers are called at most once, and only for a pull or if their credentials decide about access.
	ask := sync.OnceValue(func() given { return p.askProviders(ctx, r, repository) })
	if r.Policy == v1.PullAlways {
		return p.pullUnlessBackingOff(ctx, r, name, repository, ask)
	}
	image, found, err := p.lookUp(ctx, name)
	switch {
	case ctx.Err() != nil:
		return Image{}, ctx.Err()
	case err != nil:
		message := fmt.Sprintf("Failed to inspect image %q: %v", name, err)
		return Image{}, p.refused(ctx, r, eventInspectFailed, &Error{Reason: ReasonInspect, Message: message})
	case found:
		may, err := p.mayUse(ctx, r, repository, image, ask)
		if err != nil || may {
			return image, err
		}
	}
	if r.Policy == v1.PullNever {
		return Image{}, p.refused(ctx, r, ReasonNeverPull,
			&Error{Reason: ReasonNeverPull, Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image)})
	}
	return p.pullUnlessBackingOff(ctx, r, name, repository, ask)
}

// mayUse reports whether a pod may use a present image without a pull of its own.
func (p *Puller) mayUse(
	ctx context.Context,
	r Request,
	repository string,
	image Image,
	ask func() given,
) (bool, error) {
	message := fmt.Sprintf("Container image %q already present on machine", r.Image)
	if p.cfg.Records != nil {
		message += " and can be accessed by the pod"
		own := func() (pullrecords.Credentials, error) { return ownCredentials(r, repository, ask) }
		must, err := p.cfg.Records.MustPull(ctx, r.Image, image.Ref, own)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil {
			return false, &Error{Reason: ReasonPull, Message: fmt.Sprintf("cannot check whether the pod may use the present image %q: %v", r.Image, err)}
		}
		if must {
			return false, nil
		}
	}
	p.cfg.Events.Normal(ctx, r.Pod, r.Container, eventPulled, message)
	return true, nil
}

// ownCredentials returns the credentials that belong to a pod and not to the node.
func ownCredentials(r Request, repository string, ask func() given) (pullrecords.Credentials, error) {
	all, err := podCredentials(r.Secrets, repository)
	if err != nil {
		return pullrecords.Credentials{}, err
	}
	var own pullrecords.Credentials
	for _, c := range append(all, ask().credentials...) {
		record := c.record()
		own.Secrets = append(own.Secrets, record.KubernetesSecrets...)
		if own.Account == nil && len(record.KubernetesServiceAccounts) > 0 {
			own.Account = &record.KubernetesServiceAccounts[0]
		}
	}
	return own, nil
}

// refused records the event of an image that is not pulled at all.
func (p *Puller) refused(ctx context.Context, r Request, event string, failure *Error) error {
	p.cfg.Events.Warning(ctx, r.Pod, r.Container, event, failure.Message)
	return failure
}

// pullUnlessBackingOff pulls an image by its complete name, unless a back-off of the pod for this image is active.
func (p *Puller) pullUnlessBackingOff(
	ctx context.Context,
	r Request,
	name, repository string,
	ask func() given,
) (Image, error) {
	key := backoffKey{pod: r.Pod.UID, image: name}
	if wait, last := p.waiting(key); wait > 0 {
		message := fmt.Sprintf("Back-off pulling image %q", r.Image)
		p.cfg.Events.Normal(ctx, r.Pod, r.Container, eventBackOff, message)
		return Image{}, &Error{Reason: ReasonPullBackOff, Message: message + ": " + last, RetryAfter: wait}
	}
	given := ask()
	if ctx.Err() != nil {
		return Image{}, ctx.Err()
	}
	p.cfg.Events.Normal(ctx, r.Pod, r.Container, eventPulling, fmt.Sprintf("Pulling image %q", r.Image))
	begun := p.cfg.Clock.Now()
	p.cfg.Phases.PullBegan(r.Pod.UID, begun)
	image, alone, err := p.pull(ctx, r, name, repository, given)
	p.cfg.Phases.PullEnded(r.Pod.UID, p.cfg.Clock.Now())
	if err == nil {
		took := p.cfg.Clock.Since(begun)
		p.cfg.Metrics.Pulled(image.Size, took)
		p.succeeded(key)
		p.cfg.Events.Normal(ctx, r.Pod, r.Container, eventPulled, fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.",
			r.Image, alone.Truncate(time.Millisecond), took.Truncate(time.Millisecond), image.Size))
		return image, nil
	}
	if ctx.Err() != nil {
		return Image{}, ctx.Err() // an interrupted pull is no failure of the image
	}
	p.cfg.Metrics.failed()
	p.cfg.Events.Warning(ctx, r.Pod, r.Container, eventFailed, fmt.Sprintf("Failed to pull image %q: %v", r.Image, err))
	failure := pullError(name, err)
	failure.RetryAfter = p.failed(key, failure.Error())
	return Image{}, failure
}

// pullError returns the error of a failed pull. Two kinds of failure have a reason of their own, which the runtime's
// error begins with.
func pullError(name string, err error) *Error {
	for known, why := range map[error]string{
		crierrors.ErrRegistryUnavailable:       "the registry is unavailable",
		crierrors.ErrSignatureValidationFailed: "the signature validation failed",
	} {
		if rest, ok := strings.CutPrefix(err.Error(), known.Error()); ok {
			return &Error{Reason: known.Error(), Message: fmt.Sprintf("image pull failed for %s because %s%s", name, why, rest)}
		}
	}
	return &Error{Reason: ReasonPull, Message: fmt.Sprintf("failed to pull image %q: %v", name, err)}
}

// complete adds the tag latest to an image's name without tag and digest, and returns its repository with the registry.
func complete(image string) (name, repository string, err error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", "", err
	}
	if reference.IsNameOnly(named) {
		image += ":latest"
	}
	return image, named.Name(), nil
}

// Left removes the records of images that the runtime no longer has. ids are the runtime's images, listed is when they
// were listed.
func (p *Puller) Left(ctx context.Context, ids []string, listed time.Time) {
	if p.cfg.Records != nil {
		p.cfg.Records.Prune(ctx, ids, listed)
	}
}

// Recover completes the records of pulls that the previous process had not finished. It waits until the runtime has
// listed its images, or ctx ends.
func (p *Puller) Recover(
	ctx context.Context,
	images func(context.Context) (internalapi.ImageManagerService, error),
) error {
	if p.cfg.Records == nil {
		return nil
	}
	service, err := images(ctx)
	if err != nil {
		return err
	}
	all, err := service.ListImages(cri.Quiet(ctx), nil)
	if err != nil {
		p.cfg.Logger.WarnContext(ctx, "cannot list the images whose pull was interrupted: pods that use them pull them again", telemetry.KeyError, err)
		return nil
	}
	p.cfg.Records.Recover(ctx, all)
	return nil
}
