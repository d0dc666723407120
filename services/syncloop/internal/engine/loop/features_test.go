package loop_test

import (
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/nodefeatures"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// TestAPodThatRequiresAMissingFeatureIsRefused: a new pod is refused, and a change of a running pod becomes an event.
func TestAPodThatRequiresAMissingFeatureIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		features, err := nodefeatures.Of(&kubeletconfigv1beta1.KubeletConfiguration{
			FeatureGates: map[string]bool{"InPlacePodLevelResourcesVerticalScaling": false},
		}, "v1.37.1")
		if err != nil {
			t.Fatal(err)
		}
		r := newRigWith(t, fakenode.New(), t.TempDir(), 0, func(cfg *loop.Config) { cfg.Features = features })
		r.configPeer.set(r.config)
		r.plegPeer.set(r.node.Events)
		r.setNode(machine("4"))
		r.source("file", true)
		wants := cpus("wants", "1", 0)
		wants.Spec.HostNetwork, wants.Spec.HostUsers = true, ptr.To(false)
		r.add(wants)
		r.eventually("it is Failed", func() bool { return r.failed("wants", "PodFeatureUnsupported") })
		const message = "Pod was rejected: Pod requires node features that are not available: UserNamespacesHostNetworkSupport"
		if got := r.pod("wants").Status.Message; got != message {
			t.Errorf("the message is %q, want %q", got, message)
		}
		whole := func(cpu string) *v1.Pod {
			pod := cpus("whole", "1", 0)
			pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}
			return pod
		}
		r.add(whole("1"))
		r.eventually("it runs", r.runs("whole"))
		r.change(whole("2"))
		r.eventually("the change is reported", func() bool {
			return slices.Contains(r.events.list(), "Warning FailedNodeDeclaredFeaturesCheck whole")
		})
	})
}
