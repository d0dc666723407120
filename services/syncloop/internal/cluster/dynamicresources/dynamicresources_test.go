package dynamicresources_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/dynamicresources"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// create creates an object.
func create[T any](t *testing.T, with func(context.Context, *T, metav1.CreateOptions) (*T, error), object *T) *T {
	t.Helper()
	out, err := with(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// newNode returns a node of a real API server, with its rights and nothing else.
func newNode(t *testing.T, admin *kubernetes.Clientset, c *cluster.Cluster, name string) dynamicresources.APIServer {
	t.Helper()
	node := create(t, admin.CoreV1().Nodes().Create, &v1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"}})
	client, err := apiclient.New(apiclient.Config{
		Kubeconfig: c.Kubeconfig(t, cluster.NodeUser(node.Name), cluster.Nodes), Service: nodeconfig.SyncLoop, QPS: 50,
		Burst: 100, ContentType: "application/vnd.kubernetes.protobuf",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	group, err := client.Group(resourceapi.SchemeGroupVersion, dynamicresources.AddTypes)
	if err != nil {
		t.Fatal(err)
	}
	return dynamicresources.APIServer{
		Client: group, NodeName: node.Name, Node: func(context.Context) (*v1.Node, error) { return node, nil },
	}
}

func publish(t *testing.T, admin *kubernetes.Clientset, node, driver string) {
	t.Helper()
	create(t, admin.ResourceV1().ResourceSlices().Create, &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "slice-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "one"}},
		},
	})
}

func drivers(t *testing.T, node dynamicresources.APIServer) []string {
	t.Helper()
	names, err := node.SliceDrivers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestANodeRemovesItsOwnSlices of one driver or of all, and no slice of another node.
func TestANodeRemovesItsOwnSlices(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	one, other := newNode(t, admin, c, "one"), newNode(t, admin, c, "other")
	for _, driver := range []string{"gpu.example.com", "gpu.example.com", "nic.example.com"} {
		publish(t, admin, one.NodeName, driver)
		publish(t, admin, other.NodeName, driver)
	}
	both := []string{"gpu.example.com", "nic.example.com"}
	if diff := cmp.Diff(both, drivers(t, one)); diff != "" {
		t.Errorf("drivers (-want +got):\n%s", diff)
	}
	for _, step := range []struct {
		driver string
		left   []string
	}{{driver: "gpu.example.com", left: both[1:]}, {left: nil}, {left: nil}} {
		if err := one.DeleteSlices(t.Context(), step.driver); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.left, drivers(t, one)); diff != "" {
			t.Errorf("after the removal of %q (-want +got):\n%s", step.driver, diff)
		}
	}
	if diff := cmp.Diff(both, drivers(t, other)); diff != "" {
		t.Errorf("drivers of the other node (-want +got):\n%s", diff)
	}
	one.Node = func(context.Context) (*v1.Node, error) { return nil, os.ErrNotExist }
	if err := one.DeleteSlices(t.Context(), ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a Node: %v", err)
	}
}

// TestANodeGetsTheClaimsOfItsPods and no others.
func TestANodeGetsTheClaimsOfItsPods(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	node := newNode(t, admin, c, "claims")
	space := create(t, admin.CoreV1().Namespaces().Create,
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "claims-"}}).Name
	for _, name := range []string{"used", "foreign"} {
		create(t, admin.ResourceV1().ResourceClaims(space).Create, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: "one", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.example.com"},
			}}}},
		})
	}
	used := "used"
	create(t, admin.CoreV1().Pods(space).Create, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.PodSpec{
			NodeName: node.NodeName, Containers: []v1.Container{{Name: "main", Image: "image"}},
			ResourceClaims: []v1.PodResourceClaim{{Name: "mine", ResourceClaimName: &used}},
		},
	})
	eventually.That(t, "the node may read the claim", func() bool {
		claim, err := node.Claim(t.Context(), space, used)
		return err == nil && claim.Name == used && claim.UID != ""
	})
	if _, err := node.Claim(t.Context(), space, "foreign"); !apierrors.IsForbidden(err) {
		t.Errorf("a claim of nobody: %v", err)
	}
}
