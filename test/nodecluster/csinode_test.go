package nodecluster

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// driverName is the name of the driver of registrar.
const driverName = "shown.csi.example.com"

// registrar is the registrar of a CSI driver, and as much of the driver as that needs.
type registrar struct {
	registrationv1.UnimplementedRegistrationServer
	csi.UnimplementedNodeServer
}

func (registrar) GetInfo(context.Context, *registrationv1.InfoRequest) (*registrationv1.PluginInfo, error) {
	return &registrationv1.PluginInfo{
		Type: registrationv1.CSIPlugin, Name: driverName, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (registrar) NotifyRegistrationStatus(
	context.Context, *registrationv1.RegistrationStatus,
) (*registrationv1.RegistrationStatusResponse, error) {
	return &registrationv1.RegistrationStatusResponse{}, nil
}

func (registrar) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId: "machine-7", MaxVolumesPerNode: 9,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{"example.com/rack": "r7"}},
	}, nil
}

// register serves a registrar on a socket of the node until the test ends or withdraw is called.
func register(t *testing.T) (withdraw func()) {
	t.Helper()
	dir := filepath.Join(node.Layout.StateDir(), "root", "plugins_registry")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "shown.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registrationv1.RegisterRegistrationServer(server, registrar{})
	csi.RegisterNodeServer(server, registrar{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	withdraw = sync.OnceFunc(func() {
		server.Stop()
		serving.Wait()
	})
	t.Cleanup(withdraw)
	return withdraw
}

// entryIn returns the entry of the driver in a CSINode; nil if there is none.
func entryIn(object *storagev1.CSINode) *storagev1.CSINodeDriver {
	i := slices.IndexFunc(object.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driverName })
	if i < 0 {
		return nil
	}
	return &object.Spec.Drivers[i]
}

// TestACSIDriverIsInTheCSINode while it is registered, without a gap when the processes of the node are killed.
func TestACSIDriverIsInTheCSINode(t *testing.T) {
	admin := whole.Client(t)
	awaitThat(t, "the node is Ready", func() bool { return condition(theNode(t, admin), corev1.NodeReady) == corev1.ConditionTrue })
	entry := func() *storagev1.CSINodeDriver {
		object, err := admin.StorageV1().CSINodes().Get(t.Context(), nodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return entryIn(object)
	}
	withdraw := register(t)
	awaitThat(t, "the driver is in the CSINode", func() bool { return entry() != nil })
	if got := entry(); got.NodeID != "machine-7" || *got.Allocatable.Count != 9 ||
		!slices.Equal(got.TopologyKeys, []string{"example.com/rack"}) {
		t.Errorf("the entry is %+v", got)
	}
	if theNode(t, admin).Labels["example.com/rack"] != "r7" {
		t.Error("the Node has no label of the topology")
	}

	gaps := watchGaps(t, admin)
	for _, names := range [][]string{{"syncloop"}, {"nodestatus"}, four()} {
		kill(t, names...)
		awaitThat(t, "the processes are back", func() bool {
			return !slices.ContainsFunc(names, func(name string) bool { _, err := node.PID(name); return err != nil })
		})
		awaitThat(t, "the label of the topology is back", unlabeled(t, admin))
	}
	if n := gaps(); n > 0 {
		t.Errorf("the CSINode was without the driver %d times", n)
	}
	withdraw()
	awaitThat(t, "the driver is gone", func() bool { return entry() == nil })
}

// unlabeled removes the label of the topology from the Node, and returns a function that reports whether nodestatus has
// written it again.
func unlabeled(t *testing.T, admin kubernetes.Interface) func() bool {
	t.Helper()
	if _, err := admin.CoreV1().Nodes().Patch(t.Context(), nodeName, types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"example.com/rack":null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	return func() bool { return theNode(t, admin).Labels["example.com/rack"] == "r7" }
}

// watchGaps watches the CSINode from now on, and returns a function that ends the watch and returns the number of
// versions without the driver.
func watchGaps(t *testing.T, admin kubernetes.Interface) func() int {
	t.Helper()
	events, err := admin.StorageV1().CSINodes().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + nodeName,
	})
	if err != nil {
		t.Fatal(err)
	}
	gaps := 0
	var watching sync.WaitGroup
	watching.Go(func() {
		for event := range events.ResultChan() {
			object, ok := event.Object.(*storagev1.CSINode)
			if ok && (event.Type == watch.Deleted || entryIn(object) == nil) {
				gaps++
			}
		}
	})
	stop := sync.OnceFunc(func() {
		events.Stop()
		watching.Wait()
	})
	t.Cleanup(stop)
	return func() int {
		stop()
		return gaps
	}
}
