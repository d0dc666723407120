package images

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/imagecredentials"
)

// eventProvider is the reason of an event that the kubelet does not have: it only logs the failure of a credential
// provider.
const eventProvider = "FailedToRetrieveImageCredentials"

// Providers calls the credential providers of the node for a repository and a pod. It returns the credentials by
// registry or path, one element per provider. Each of failures names a provider and the reason, and contains no secret.
// Providers returns soon after ctx has ended.
type Providers func(
	ctx context.Context,
	pod *v1.Pod,
	repository string,
) (found []imagecredentials.Given, failures []error)

// given holds the credentials of providers for a pull.
type given struct {
	credentials []credential
	failures    []error
}

// askProviders calls the credential providers before the pull waits for its turn, so that a provider that hangs delays
// no other pull. It records an event for providers that fail; the image is pulled without their credentials.
func (p *Puller) askProviders(ctx context.Context, r Request, repository string) given {
	if p.cfg.Providers == nil {
		return given{}
	}
	ctx, span := telemetry.Start(ctx, p.cfg.Tracer, "image.credentials", telemetry.Subject{Image: repository})
	found, failures := p.cfg.Providers(ctx, r.Pod, repository)
	telemetry.End(span, errors.Join(failures...))
	if ctx.Err() == nil {
		for _, failure := range failures {
			p.cfg.Events.Warning(ctx, r.Pod, r.Container, eventProvider,
				fmt.Sprintf("Unable to retrieve credentials for image %q: %v. Attempting to pull the image may not succeed.", r.Image, failure))
		}
	}
	keyring := &credentialprovider.BasicDockerKeyring{}
	for _, one := range found {
		var source *credentialprovider.CredentialSource
		if one.Account != nil {
			source = &credentialprovider.CredentialSource{ServiceAccount: one.Account}
		}
		keyring.Add(source, withAddress(one.Config))
	}
	return given{credentials: credentialsOf(keyring, repository), failures: failures}
}

// without adds the failures of credential providers to the error of a pull, because they may be its cause.
func (g given) without(err error) error {
	if err == nil || len(g.failures) == 0 {
		return err
	}
	texts := make([]string, len(g.failures))
	for i, failure := range g.failures {
		texts[i] = failure.Error()
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(texts, "; "))
}
