// Package imagecredentials gets registry credentials from credential provider plugins, as the kubelet does. Plugins are
// programs on the machine that a CredentialProviderConfig configures for matching images. Package images calls this
// package before each pull; nodeconfig has read the file and found the programs.
//
// A plugin receives a CredentialProviderRequest on its standard input, with the image and optionally a token of the
// pod's service account. It writes a CredentialProviderResponse to its standard output. Pulls do not depend on plugins:
// a plugin that fails, hangs or returns an invalid response is killed after [runLimit] at the latest, the failure is
// reported, and the image is pulled without its credentials.
//
// Credentials and tokens exist only in memory: no error and no log line contains one.
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
	// runLimit is the time limit of a plugin, including the wait for its turn. It is the kubelet's.
	runLimit = time.Minute
	// killTimeout is the time limit for the end of a killed plugin, and of its child processes that keep its output open.
	killTimeout = 5 * time.Second
	// maxRuns is the largest number of concurrent runs of one plugin. The kubelet has no limit.
	maxRuns = 20
)

// errShuttingDown is the error of requests during the shutdown of the process.
var errShuttingDown = errors.New("syncloop ends")

// Accounts returns the service accounts of pods.
type Accounts interface {
	// Account returns a service account.
	Account(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
	// Token returns a token of a pod's service account that is bound to the pod, for an audience.
	Token(ctx context.Context, pod *v1.Pod, account *v1.ServiceAccount, audience string) (string, error)
}

// Config holds the dependencies of Providers.
type Config struct {
	// Providers lists the configured providers; it may be empty. Required.
	Providers nodeconfig.CredentialProviders
	// Run runs plugins; see Exec. Required.
	Run Run
	// Accounts returns the service accounts of pods. Required for providers with tokenAttributes.
	Accounts Accounts
	// Clock is the time. Required.
	Clock clock.Clock
	// Metrics counts runs; nil counts nothing.
	Metrics *Metrics
	// Logger logs failures. Required.
	Logger *slog.Logger
}

// Providers calls the plugins. Create it with New. Its methods may be called from any goroutine.
type Providers struct {
	cfg Config
	// all has the order of the file. Credentials are tried in this order.
	all []*provider
	// process cancels the running plugins.
	process context.Context //nolint:containedctx // named so in New

	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// New returns Providers whose plugins run until process or the context of Run ends. It runs nothing.
func New(process context.Context, cfg Config) *Providers {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	cfg.Metrics.configured(cfg.Providers.Hash)
	p := &Providers{cfg: cfg, process: process}
	for _, one := range cfg.Providers.Providers {
		p.all = append(p.all, newProvider(p, one))
	}
	return p
}

// Run returns after ctx and all plugins have ended. After that no plugin is started.
func (p *Providers) Run(ctx context.Context) error {
	<-ctx.Done()
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.running.Wait()
	return ctx.Err()
}

// begin registers a plugin's run, unless the process is shutting down. The caller calls running.Done at its end.
func (p *Providers) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.process.Err() != nil {
		return false
	}
	p.running.Add(1)
	return true
}

// Failure is the error of a provider.
type Failure struct {
	// Provider is the provider's name.
	Provider string
	// Cause is the reason with advice. It contains no credential.
	Cause error
}

func (f *Failure) Error() string {
	return fmt.Sprintf("credential provider %q: %v", f.Provider, f.Cause)
}

func (f *Failure) Unwrap() error { return f.Cause }

// Given holds the credentials of one provider.
type Given struct {
	// Config holds the credentials by registry or path.
	Config credentialprovider.DockerConfig
	// Account is the service account for which the provider was called; nil if the credentials are for all pods.
	Account *credentialprovider.ServiceAccountCoordinates
}

// For returns the credentials of the providers for a pod and a repository of images, for example
// "registry.example.com/shop/web": by registry or path, with the providers in the order of the file. It calls all
// matching providers concurrently, except those with a valid cached response. failures has a *Failure for each provider
// that returned nothing, also because ctx has ended.
func (p *Providers) For(ctx context.Context, pod *v1.Pod, repository string) (found []Given, failures []error) {
	given, errs := make([]Given, len(p.all)), make([]error, len(p.all))
	var calls sync.WaitGroup
	for i, one := range p.all {
		if one.matches(repository) {
			calls.Go(func() { given[i], errs[i] = one.provide(ctx, pod, repository) })
		}
	}
	calls.Wait()
	for i, one := range p.all {
		switch {
		case errs[i] == nil && len(given[i].Config) > 0:
			found = append(found, given[i])
		case errs[i] != nil && ctx.Err() == nil:
			p.logFailure(ctx, pod, repository, one.Name, errs[i])
			fallthrough
		case errs[i] != nil:
			failures = append(failures, &Failure{Provider: one.Name, Cause: errs[i]})
		}
	}
	return found, failures
}

// logFailure logs a failure and the plugin's standard error output.
func (p *Providers) logFailure(ctx context.Context, pod *v1.Pod, repository, name string, err error) {
	attrs := []any{"provider", name, telemetry.KeyImage, repository, telemetry.KeyPod, pod.Namespace + "/" + pod.Name, telemetry.KeyPodUID, string(pod.UID), telemetry.KeyError, err}
	var run *runError
	if errors.As(err, &run) && run.stderr != "" {
		attrs = append(attrs, "stderr", run.stderr)
	}
	p.cfg.Logger.WarnContext(ctx, "a credential provider failed; pulling the image without its credentials", attrs...)
}
