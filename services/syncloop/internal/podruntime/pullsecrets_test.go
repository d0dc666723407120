package podruntime_test

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/podruntime"
)

// TestAPodWithPullSecretsIsStartedWithTheNodesCredentials, and is told so as the kubelet tells of a secret that it cannot get.
func TestAPodWithPullSecretsIsStartedWithTheNodesCredentials(t *testing.T) {
	events := &told{}
	n := newNode(t, func(c *podruntime.Config) {
		c.Events = events
		c.Credentials = func(context.Context, string) []*runtimeapi.AuthConfig {
			return []*runtimeapi.AuthConfig{{Username: "node", Password: "node-secret"}}
		}
	})
	n.cri.Protect("registry.test/app:1", "node", "node-secret")
	pod := newPod("a")
	pod.Spec.Containers[0].Image = "registry.test/app:1"
	pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "first"}, {Name: ""}, {Name: "second"}}
	n.sync(pod)
	n.want(pod, "sandbox-0:ready a-0:running")
	events.want(t,
		"Warning FailedToRetrieveImagePullSecret [] Unable to retrieve some image pull secrets (first, second); attempting to pull the image may not succeed.",
		`Normal Pulling [a] Pulling image "registry.test/app:1"`,
		"Normal Created [a] Container created", "Normal Started [a] Container started")
	n.sync(pod)
	events.want(t) // nothing is started, and nothing is told
}
