package podruntime

import (
	"context"
	"fmt"
	"strings"
)

// eventPullSecret is the reason of the kubelet's event.
const eventPullSecret = "FailedToRetrieveImagePullSecret"

// warnOfPullSecrets tells that this version does not read pull secrets, as the kubelet tells of those that it cannot get: the
// pod is started with the credentials of the node.
func (s *podSync) warnOfPullSecrets(ctx context.Context) {
	var names []string
	for _, secret := range s.pod.Spec.ImagePullSecrets {
		if secret.Name != "" {
			names = append(names, secret.Name)
		}
	}
	if len(names) > 0 {
		s.m.cfg.Events.Warning(ctx, s.pod, "", eventPullSecret,
			fmt.Sprintf("Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(names, ", ")))
	}
}
