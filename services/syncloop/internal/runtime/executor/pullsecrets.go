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
