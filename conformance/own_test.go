package conformance_test

import (
	"testing"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/conformance"
	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/test/eventually"
)

// ownConfigMux returns this repository's configmux as a part.
func ownConfigMux(t *testing.T) conformance.Part {
	t.Helper()
	return newNodeDir(t).start("configmux")
}

// ownNodeStatus returns this repository's nodestatus as a part.
func ownNodeStatus(t *testing.T) conformance.Part {
	t.Helper()
	n := newNodeDir(t)
	// With an address of its own the Node does not change with the interfaces of other tests.
	return n.start("nodestatus", "--node-ip=192.0.2.1", "--pleg-address="+n.address("pleg"), "--syncloop-address="+n.address("syncloop"))
}

// ownSyncLoop returns this repository's syncloop as a part, with its configmux and pleg, and two pods.
func ownSyncLoop(t *testing.T) conformance.Part {
	t.Helper()
	n := newNodeDir(t)
	config := configv1.NewConfigServiceClient(n.start("configmux").Conn)
	n.start("pleg")
	part := n.start("syncloop", "--root-dir="+n.rootDir(), "--node-ip=192.0.2.1",
		"--configmux-address="+n.address("configmux"), "--pleg-address="+n.address("pleg"),
		"--nodestatus-address="+n.address("nodestatus"))
	for _, name := range []string{"b", "a"} {
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
			Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
				Name: "main", Image: "example.test/" + name + ":1",
			}}},
		}
		data, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.ApplyPod(t.Context(), &configv1.ApplyPodRequest{Pod: data}, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	engine := enginev1.NewEngineServiceClient(part.Conn)
	eventually.That(t, "both pods have their images", func() bool {
		images, err := engine.ListImages(t.Context(), &enginev1.ListImagesRequest{}, grpc.WaitForReady(true))
		return err == nil && len(images.GetImages()) == 2
	})
	return part
}

// withVersion adds the version of k8s.io/api, which the binary of a test does not record.
func withVersion(t *testing.T, part conformance.Part) conformance.Part {
	t.Helper()
	return broken(t, part, frames(func(bool) func(*streamv1.Frame) bool {
		return func(f *streamv1.Frame) bool {
			if f.GetOpening() != nil {
				f.Opening.KubernetesApiVersion = "v0.37.2"
			}
			return true
		}
	}))
}

// mayBeSkipped returns whether a check needs a silence that the part may never have: nodestatus sends the Node every
// 10 s, with the time of the heartbeat, and a bookmark is due after 10 s without a frame. Whichever timer is first
// wins.
func mayBeSkipped(suite conformance.Suite, check string) bool {
	return suite.Service == "nodestatus" && check == "stream-bookmark"
}

// TestOwnServicesKeepTheirContracts checks the other three services of this repository.
func TestOwnServicesKeepTheirContracts(t *testing.T) {
	for _, tc := range []struct {
		suite conformance.Suite
		part  func(*testing.T) conformance.Part
	}{
		{conformance.ConfigMux(), ownConfigMux},
		{conformance.NodeStatus(), ownNodeStatus},
		{conformance.SyncLoop(), ownSyncLoop},
	} {
		t.Run(tc.suite.Service, func(t *testing.T) {
			t.Parallel()
			if err := tc.suite.Check(t.Context(), withVersion(t, tc.part(t)), func(r conformance.Result) {
				t.Logf("%s %s %v %s", r.Outcome, r.Name, r.Took, r.Why)
				if r.Outcome == conformance.Skip && mayBeSkipped(tc.suite, r.Name) {
					return
				}
				if r.Outcome != conformance.Pass {
					t.Errorf("%s: %s: %s", r.Name, r.Outcome, r.Why)
				}
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
