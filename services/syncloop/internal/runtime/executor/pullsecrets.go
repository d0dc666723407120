package executor

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// eventPullSecret is the reason of the kubelet's event.
const eventPullSecret = "FailedToRetrieveImagePullSecret"

// Objects returns the config maps and secrets of pods. It fails with a [containerspec.Unknown] while it is not known
// whether one exists.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	// Use registers a pod as a user of the objects that its spec names, and Forget removes it.
	Use(pod *v1.Pod)
	Forget(uid types.UID)
}

// pullSecrets holds the secrets that a pod references for pulling its images.
type pullSecrets struct {
	found []*v1.Secret
	// err is set while it is not known whether a referenced secret exists. The containers wait.
	err error
}

// findPullSecrets reads the pod's pull secrets. It records the kubelet's event for secrets that cannot be read; the pod
// is started without them.
func (s *podSync) findPullSecrets(ctx context.Context) {
	var missing []string
	for _, ref := range s.pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := s.m.cfg.Objects.Secret(ctx, s.pod.Namespace, ref.Name)
		switch {
		case err == nil:
			s.pullSecrets.found = append(s.pullSecrets.found, secret)
		case containerspec.IsUnknown(err):
			s.pullSecrets.err = err
		default:
			missing = append(missing, ref.Name)
		}
	}
	if len(missing) > 0 {
		s.m.cfg.Events.Warning(ctx, s.pod, "", eventPullSecret,
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", ")))
	}
}
