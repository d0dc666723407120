// Package images gets the images of containers into the runtime, by pull policy, with the credentials that the node has
// for a registry, with a back-off after failed pulls and a limit on how many are pulled at the same time. What it does
// is told in the kubelet's events. Its only state is that back-off and when an image was last asked for, which may be
// lost: a restarted process tries again at once.
//
// Package imagegc removes what nobody needs any more, and asks here which images are about to be used.
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

// Reasons of a waiting container, as the kubelet shows them.
const (
	ReasonInvalidName = "InvalidImageName"
	ReasonInspect     = "ImageInspectError"
	ReasonNeverPull   = "ErrImageNeverPull"
	ReasonPull        = "ErrImagePull"
	ReasonPullBackOff = "ImagePullBackOff"
)

// Reasons of events, as the kubelet has them. ReasonNeverPull is one too.
const (
	eventPulling       = "Pulling"
	eventPulled        = "Pulled"
	eventFailed        = "Failed"
	eventInspectFailed = "InspectFailed"
	eventBackOff       = "BackOff"
)

const (
	presentFor         = time.Second // an image that was just seen in the runtime is not asked for again
	defaultConcurrency = 1           // serializeImagePulls
)

// Events is where is told what was done for pods; *podevents.Recorder does it.
type Events interface {
	// Normal and Warning tell something of a container of a pod: a reason in one word, and a sentence.
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
}

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
	// Metrics counts and times pulls; nil counts nothing.
	Metrics *Metrics
	// Phases is told of the pulls for each pod; nil keeps nothing.
	Phases *phases.Book
	// Events is told of pulls; nobody is when nil.
	Events Events
	// Credentials gives what the node has for a repository, for example "registry.example.com/shop/web", the best first.
	// They are tried in that order; without any the pull is made without. It is asked before each pull; nil has none.
	Credentials func(ctx context.Context, repository string) []*runtimeapi.AuthConfig
	// Providers are asked before each pull too; what they give is tried last. Nil has none.
	Providers Providers
	// Serial pulls one image after another; else MaxParallel at a time, 0 being no limit.
	Serial      bool
	MaxParallel int
	// Records knows with whose credentials images were pulled, and so who may have them; nil lets every pod have every
	// image.
	Records *pullrecords.Book
	// QPS is how many pulls may begin in a second, Burst how many of them at once; one more fails. A QPS of 0 is no limit.
	QPS   float32
	Burst int
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
	// Pod is whose container it is for: each pod has its own back-off. Container is its name.
	Pod       *v1.Pod
	Container string
	// Image is the name in the spec, Policy its pull policy.
	Image  string
	Policy v1.PullPolicy
	// Secrets are the pod's pull secrets. Their credentials are tried before those of the node.
	Secrets []*v1.Secret
	// Sandbox is the configuration of the pod's sandbox, which some runtimes want to know on a pull.
	Sandbox *runtimeapi.PodSandboxConfig
}

// Puller gets images. Its methods may be called from any goroutine.
type Puller struct {
	cfg   Config
	slots chan struct{}           // nil is no limit
	rate  flowcontrol.RateLimiter // nil is no limit

	mu      sync.Mutex
	present map[string]*lookup
	backoff map[backoffKey]*backoff
	used    map[string]time.Time // by the runtime's ID
}

// New makes a Puller. It starts nothing.
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

// sleepless is a clock for a limiter that nobody waits for.
type sleepless struct{ clock.Clock }

// Sleep implements flowcontrol.Clock.
func (sleepless) Sleep(time.Duration) {}

// noopEvents is an Events that discards events.
type noopEvents struct{}

func (noopEvents) Normal(context.Context, *v1.Pod, string, string, string)  {}
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// Ensure has the image in the runtime, pulling it when its policy says so. It fails with an *Error, or with the error
// of ctx when that ends first.
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
	// The providers are asked once, and only for a pull or when whose credentials they have decides.
	ask := sync.OnceValue(func() given { return p.askProviders(ctx, r, repository) })
	if r.Policy == v1.PullAlways {
		return p.pullUnlessHeldBack(ctx, r, name, repository, ask)
	}
	image, found, err := p.lookUp(ctx, name)
	switch {
	case ctx.Err() != nil:
		return Image{}, ctx.Err()
	case err != nil:
		return Image{}, p.refused(ctx, r, eventInspectFailed, &Error{Reason: ReasonInspect, Message: fmt.Sprintf("Failed to inspect image %q: %v", name, err)})
	case found:
		may, err := p.mayHave(ctx, r, repository, image, ask)
		if err != nil || may {
			return image, err
		}
	}
	if r.Policy == v1.PullNever {
		return Image{}, p.refused(ctx, r, ReasonNeverPull,
			&Error{Reason: ReasonNeverPull, Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Image)})
	}
	return p.pullUnlessHeldBack(ctx, r, name, repository, ask)
}

// mayHave tells whether a pod may have an image that is there without pulling it itself.
func (p *Puller) mayHave(ctx context.Context, r Request, repository string, image Image, ask func() given) (bool, error) {
	message := fmt.Sprintf("Container image %q already present on machine", r.Image)
	if p.cfg.Records != nil {
		message += " and can be accessed by the pod"
		must, err := p.cfg.Records.MustPull(ctx, r.Image, image.Ref, func() (pullrecords.Credentials, error) { return ownCredentials(r, repository, ask) })
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err != nil {
			return false, &Error{Reason: ReasonPull, Message: fmt.Sprintf("whether the pod may have image %q that is there cannot be told: %v", r.Image, err)}
		}
		if must {
			return false, nil
		}
	}
	p.cfg.Events.Normal(ctx, r.Pod, r.Container, eventPulled, message)
	return true, nil
}

// ownCredentials are those of a pod that are not the node's.
func ownCredentials(r Request, repository string, ask func() given) (pullrecords.Credentials, error) {
	all, err := podCredentials(r.Secrets, repository)
	if err != nil {
		return pullrecords.Credentials{}, err
	}
	var own pullrecords.Credentials
	for _, c := range append(all, ask().credentials...) {
		with := c.record()
		own.Secrets = append(own.Secrets, with.KubernetesSecrets...)
		if own.Account == nil && len(with.KubernetesServiceAccounts) > 0 {
			own.Account = &with.KubernetesServiceAccounts[0]
		}
	}
	return own, nil
}

// refused tells why an image is not even pulled.
func (p *Puller) refused(ctx context.Context, r Request, event string, failure *Error) error {
	p.cfg.Events.Warning(ctx, r.Pod, r.Container, event, failure.Message)
	return failure
}

// pullUnlessHeldBack pulls an image of a complete name, unless the last pull of it for the pod failed too short a while
// ago.
func (p *Puller) pullUnlessHeldBack(ctx context.Context, r Request, name, repository string, ask func() given) (Image, error) {
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
		return Image{}, ctx.Err() // who gave up has not learned anything of the image
	}
	p.cfg.Metrics.failed()
	p.cfg.Events.Warning(ctx, r.Pod, r.Container, eventFailed, fmt.Sprintf("Failed to pull image %q: %v", r.Image, err))
	failure := pullError(name, err)
	failure.RetryAfter = p.failed(key, failure.Error())
	return Image{}, failure
}

// pullError says why a pull failed. Two kinds of failure have a word of their own, with which the runtime begins its
// error.
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

// complete gives an image's name a tag, latest, when it has neither tag nor digest, and says of which repository it is,
// with its registry.
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

// Left is told which images the runtime has, by ID, and when it was asked: of the others the records are removed.
func (p *Puller) Left(ctx context.Context, ids []string, asked time.Time) {
	if p.cfg.Records != nil {
		p.cfg.Records.Prune(ctx, ids, asked)
	}
}

// Recover takes up what a process before this one was pulling, once the runtime says which images it has. It waits for
// that until ctx ends.
func (p *Puller) Recover(ctx context.Context, images func(context.Context) (internalapi.ImageManagerService, error)) error {
	if p.cfg.Records == nil {
		return nil
	}
	service, err := images(ctx)
	if err != nil {
		return err
	}
	all, err := service.ListImages(cri.Quiet(ctx), nil)
	if err != nil {
		p.cfg.Logger.WarnContext(ctx, "the images whose pull was interrupted are not known: pods that use them pull them again", telemetry.KeyError, err)
		return nil
	}
	p.cfg.Records.Recover(ctx, all)
	return nil
}
