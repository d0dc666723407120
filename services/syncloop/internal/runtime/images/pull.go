package images

import (
	"context"
	"errors"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// errTooManyPulls is the error of a pull above registryPullQPS and registryBurst. Its text is the kubelet's.
var errTooManyPulls = errors.New("pull QPS exceeded")

// pull pulls an image after waiting for its turn, and returns the duration without the wait. It tries the pod's own
// credentials first, then those of the node's files, then those of the credential providers.
func (p *Puller) pull(
	ctx context.Context,
	r Request,
	name, repository string,
	given given,
) (image Image, took time.Duration, err error) {
	about := telemetry.Subject{Image: name}
	ctx, span := telemetry.Start(ctx, p.cfg.Tracer, "image.pull", about)
	defer func() { telemetry.End(span, err) }()
	if p.slots != nil {
		waiting := p.cfg.Clock.Now()
		select {
		case p.slots <- struct{}{}:
			defer func() { <-p.slots }()
			telemetry.Wait(ctx, p.cfg.Tracer, about, "its turn", waiting, p.cfg.Clock.Now())
		case <-ctx.Done():
			return Image{}, 0, ctx.Err()
		}
	}
	var used credential
	if p.cfg.Records != nil {
		if err := p.cfg.Records.Begin(r.Image); err != nil {
			return Image{}, 0, err
		}
		defer func() {
			if err != nil {
				p.cfg.Records.Failed(ctx, r.Image)
			} else {
				p.cfg.Records.Pulled(ctx, r.Image, image.Ref, used.record())
			}
		}()
	}
	if p.rate != nil && !p.rate.TryAccept() {
		return Image{}, 0, errTooManyPulls
	}
	service, err := p.cfg.Images()
	if err != nil {
		return Image{}, 0, err
	}
	start := p.cfg.Clock.Now()
	p.cfg.Logger.InfoContext(ctx, "pulling an image", telemetry.KeyImage, name, telemetry.KeyPodUID, string(r.Pod.UID))
	credentials, err := podCredentials(r.Secrets, repository)
	if err == nil {
		credentials = append(append(credentials, ofNode(p.cfg.Credentials(ctx, repository))...), given.credentials...)
		used, err = p.pullWith(ctx, service, r, name, credentials)
		err = given.without(err)
	}
	if err != nil {
		p.cfg.Logger.WarnContext(ctx, "cannot pull an image", telemetry.KeyImage, name, telemetry.KeyError, err)
		return Image{}, 0, err
	}
	p.mu.Lock()
	delete(p.present, name) // a tag may refer to another image now
	p.mu.Unlock()
	image, found, err := p.lookUp(ctx, name)
	took = p.cfg.Clock.Since(start)
	p.cfg.Logger.InfoContext(ctx, "pulled an image", telemetry.KeyImage, name, telemetry.KeyDuration, took)
	if err == nil && !found {
		err = errors.New("the runtime does not have the image that it has pulled")
	}
	return image, took, err
}

// pullWith tries each of the credentials until a pull succeeds, or pulls without credentials if there are none. It
// returns the credential that succeeded; the zero value is none. The error contains the errors of all tries, without
// the credentials.
func (p *Puller) pullWith(
	ctx context.Context,
	service internalapi.ImageManagerService,
	r Request,
	name string,
	credentials []credential,
) (credential, error) {
	if len(credentials) == 0 {
		credentials = []credential{{}}
	}
	var errs []error
	for _, c := range credentials {
		auth := c.auth
		const method = runtimeapi.ImageService_PullImage_FullMethodName
		err := p.cfg.Calls.Call(ctx, method, telemetry.Subject{Image: name}, nil, func(ctx context.Context) error {
			_, err := service.PullImage(ctx, &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}, auth, r.Sandbox)
			return withoutSecrets(err, auth) // before it reaches spans and logs
		})
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return credential{}, errs[0]
	}
	return credential{}, utilerrors.NewAggregate(errs)
}

// record returns the source of the credential in the form of the records of pulled images.
func (c credential) record() *kubeletconfigv1beta1.ImagePullCredentials {
	switch {
	case c.source != nil && c.source.Secret != nil:
		secret := c.source.Secret
		return &kubeletconfigv1beta1.ImagePullCredentials{KubernetesSecrets: []kubeletconfigv1beta1.ImagePullSecret{
			{UID: secret.UID, Namespace: secret.Namespace, Name: secret.Name, CredentialHash: c.hash},
		}}
	case c.source != nil && c.source.ServiceAccount != nil:
		account := c.source.ServiceAccount
		accounts := []kubeletconfigv1beta1.ImagePullServiceAccount{
			{UID: account.UID, Namespace: account.Namespace, Name: account.Name},
		}
		return &kubeletconfigv1beta1.ImagePullCredentials{KubernetesServiceAccounts: accounts}
	default:
		return &kubeletconfigv1beta1.ImagePullCredentials{NodePodsAccessible: true}
	}
}
