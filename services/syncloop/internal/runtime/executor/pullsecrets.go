package executor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
)

// eventPullSecret is the reason of the kubelet's event.
const eventPullSecret = "FailedToRetrieveImagePullSecret"

// pullSecrets are the secrets that a pod names for pulling its images.
type pullSecrets struct {
	found []*v1.Secret
	// err is set when nobody can say yet whether there is one that the pod names: it is waited for.
	err error
}

// findPullSecrets gets the pod's pull secrets, and tells of those that cannot be had as the kubelet does: the pod is started without.
func (s *podSync) findPullSecrets(ctx context.Context) {
	var missing []string
	for _, ref := range s.pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := s.m.cfg.Objects.Secret(ctx, s.pod.Namespace, ref.Name)
		var unknown *configobjects.UnknownError
		switch {
		case err == nil:
			s.pullSecrets.found = append(s.pullSecrets.found, secret)
		case errors.As(err, &unknown):
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
