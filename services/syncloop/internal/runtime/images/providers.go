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

// eventProvider is the reason of an event that no kubelet has: there a credential provider that fails is in the log
// only.
const eventProvider = "FailedToRetrieveImageCredentials"

// Providers asks the credential providers of the node what they have for a repository on behalf of a pod: by registry
// or path, of one after the other. Each of failures says which provider has given nothing, why, and no secret. It
// returns soon after ctx has ended.
type Providers func(ctx context.Context, pod *v1.Pod, repository string) (found []imagecredentials.Given, failures []error)

// given is what credential providers have given for a pull.
type given struct {
	credentials []credential
	failures    []error
}

// askProviders asks the credential providers for a pull, before it waits for its turn: one that hangs holds up no other
// pull. It tells the pod of those that fail; the image is pulled without them.
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

// without adds to the error of a pull which credential providers have given nothing for it: that may be why.
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
