// Package imagecredentials gets credentials of registries from credential provider plugins: programs of the machine
// that a CredentialProviderConfig names with the images they are for, as the kubelet runs them. Package images asks it
// before each pull; nodeconfig has read the file and found the programs.
//
// A plugin is told the image, and on request a token of the pod's service account, as a CredentialProviderRequest on
// its standard input, and answers with a CredentialProviderResponse on its standard output. Nobody relies on it: one
// that fails, hangs or answers nonsense is killed after [runLimit] at the latest, named with the cause, and the pull
// goes on without its credentials.
//
// Credentials and tokens are in memory here and nowhere else: no error and no line of the log has one.
package imagecredentials

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// runLimit is how long a plugin may take, the wait for its turn included: the kubelet's number.
	runLimit = time.Minute
	// killed is how long is waited for a plugin that was killed, and for what it has left behind with its output open.
	killed = 5 * time.Second
	// maxRuns is how many runs of one plugin there are at once; the kubelet has no limit.
	maxRuns = 20
)

// errEnds is for who asks while the process ends.
var errEnds = errors.New("syncloop ends")

// Accounts are the service accounts of pods.
type Accounts interface {
	// Account gets a service account.
	Account(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
	// Token gives a token of a pod's service account, as it was got, that is bound to the pod, for an audience.
	Token(ctx context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error)
}

// Config is what Providers need.
type Config struct {
	// Providers says which there are. Required; it may name none.
	Providers nodeconfig.CredentialProviders
	// Run runs plugins; see Exec. Required.
	Run Run
	// Accounts gives the service accounts of pods. Required for providers with tokenAttributes.
	Accounts Accounts
	// Clock is the time. Required.
	Clock clock.Clock
	// Metrics counts runs; nil counts nothing.
	Metrics *Metrics
	// Logger tells of what fails. Required.
	Logger *slog.Logger
}

// Providers asks the plugins. Make it with New. Its methods may be called from any goroutine.
type Providers struct {
	cfg Config
	// all are in the order of the file, in which their credentials are tried.
	all []*provider
	// process ends what runs.
	process context.Context //nolint:containedctx // named so in New

	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// New makes Providers whose plugins run until process ends, or Run. Nothing is run yet.
func New(process context.Context, cfg Config) *Providers {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	cfg.Metrics.configured(cfg.Providers.Hash)
	p := &Providers{cfg: cfg, process: process}
	for _, one := range cfg.Providers.Providers {
		p.all = append(p.all, newProvider(p, one))
	}
	return p
}

// Run returns when ctx has ended and with it every plugin. None runs from then on.
func (p *Providers) Run(ctx context.Context) error {
	<-ctx.Done()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.running.Wait()
	return ctx.Err()
}

// begin notes that a plugin is about to run, unless the process ends. The caller tells running of the end.
func (p *Providers) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.process.Err() != nil {
		return false
	}
	p.running.Add(1)
	return true
}

// Failure is why a provider has given nothing.
type Failure struct {
	// Provider is its name.
	Provider string
	// Cause says why, and what to do. It has no credential in it.
	Cause error
}

func (f *Failure) Error() string {
	return fmt.Sprintf("credential provider %q: %v", f.Provider, f.Cause)
}

func (f *Failure) Unwrap() error { return f.Cause }

// Given is what one provider has.
type Given struct {
	// Config has the credentials by registry or path.
	Config credentialprovider.DockerConfig
	// Account is the service account on whose behalf the provider was asked; nil when it has them for everybody.
	Account *credentialprovider.ServiceAccountCoordinates
}

// For gives what the providers have for a repository of images, for example "registry.example.com/shop/web", that is
// wanted for a pod: by registry or path, of one provider after the other in the order of the file. All that match the
// repository are asked side by side, but for those whose last answer still holds. Failures has a *Failure for each that
// has given nothing, also since ctx has ended.
func (p *Providers) For(ctx context.Context, pod *v1.Pod, repository string) (found []Given, failures []error) {
	given, errs := make([]Given, len(p.all)), make([]error, len(p.all))
	var asked sync.WaitGroup
	for i, one := range p.all {
		if one.matches(repository) {
			asked.Go(func() { given[i], errs[i] = one.provide(ctx, pod, repository) })
		}
	}
	asked.Wait()
	for i, one := range p.all {
		switch {
		case errs[i] == nil && len(given[i].Config) > 0:
			found = append(found, given[i])
		case errs[i] != nil && ctx.Err() == nil:
			p.tell(ctx, pod, repository, one.Name, errs[i])
			fallthrough
		case errs[i] != nil:
			failures = append(failures, &Failure{Provider: one.Name, Cause: errs[i]})
		}
	}
	return found, failures
}

// tell tells the log of a failure, with what the plugin has said beside it.
func (p *Providers) tell(ctx context.Context, pod *v1.Pod, repository, name string, err error) {
	attrs := []any{"provider", name, telemetry.KeyImage, repository, telemetry.KeyPod, pod.Namespace + "/" + pod.Name, telemetry.KeyPodUID, string(pod.UID), telemetry.KeyError, err}
	var run *runError
	if errors.As(err, &run) && run.said != "" {
		attrs = append(attrs, "stderr", run.said)
	}
	p.cfg.Logger.WarnContext(ctx, "a credential provider has given nothing; the image is pulled without its credentials", attrs...)
}
