package nodestatus

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

// storingSyncLoop is a syncloop with storage.
type storingSyncLoop struct {
	wellSyncLoop

	level *stream.Level[*enginev1.StorageItem]
}

func (s storingSyncLoop) WatchStorage(
	req *enginev1.WatchStorageRequest, ss grpc.ServerStreamingServer[enginev1.WatchStorageResponse],
) error {
	if s.level == nil {
		return status.Error(codes.Unavailable, "the volumes in use are not known yet")
	}
	return streamrpc.Serve(ss.Context(), s.level, req.GetResumeToken(),
		func(frame *streamv1.Frame, item *enginev1.StorageItem) error {
			return ss.Send(&enginev1.WatchStorageResponse{Frame: frame, Item: item})
		})
}

// csiNode waits until the API server has a CSINode that meets a condition.
func csiNode(
	t *testing.T, client kubernetes.Interface, name, what string, want func(*storagev1.CSINode) bool,
) *storagev1.CSINode {
	t.Helper()
	var object *storagev1.CSINode
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		got, err := client.StorageV1().CSINodes().Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if object = got; want(object) {
			return object
		}
	}
	t.Fatalf("there is no CSINode that %s: %+v", what, object)
	return nil
}

func drivers(names ...string) func(*storagev1.CSINode) bool {
	return func(object *storagev1.CSINode) bool {
		var got []string
		for _, d := range object.Spec.Drivers {
			got = append(got, d.Name)
		}
		slices.Sort(got)
		return slices.Equal(got, names)
	}
}

// TestTheAPIServerHasTheStorageOfTheNode uses the rights of a node.
func TestTheAPIServerHasTheStorageOfTheNode(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	const name = "storing"
	cfg := quick(member(t, name, c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes)))
	servePLEG(t, cfg)
	serve := func(level *stream.Level[*enginev1.StorageItem]) (stop func() error) {
		return servePeer(t, cfg.Peers.SyncLoop, func(s *grpc.Server) {
			enginev1.RegisterEngineServiceServer(s, storingSyncLoop{level: level})
		})
	}
	stopUnknown := serve(nil)
	stop := background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	empty := csiNode(t, admin, name, "has no driver", drivers())
	node := reported(t, admin, name, "is ready", func(node *v1.Node) bool {
		return condition(node, v1.NodeReady).Status == v1.ConditionTrue
	})
	if owners := empty.OwnerReferences; len(owners) != 1 || owners[0].UID != node.UID || owners[0].Kind != "Node" ||
		empty.Annotations[v1.MigratedPluginsAnnotationKey] == "" {
		t.Errorf("the CSINode is %+v", empty)
	}
	if err := stopUnknown(); err != nil {
		t.Fatal(err)
	}

	level := stream.NewLevel[*enginev1.StorageItem](stream.Config{})
	driver := &enginev1.CSIDriver{
		Name: "a.example.com", NodeId: "i-1", Topology: map[string]string{"example.com/rack": "r1"},
		AllocatableVolumes: proto.Int64(12),
	}
	const inUse = "kubernetes.io/csi/a.example.com^v1"
	level.Put("driver/a.example.com", &enginev1.StorageItem{Driver: driver})
	level.Put("volume/"+inUse, &enginev1.StorageItem{VolumeInUse: inUse})
	stopSyncLoop := serve(level)
	object := csiNode(t, admin, name, "has the driver", drivers("a.example.com"))
	if d := object.Spec.Drivers[0]; d.NodeID != "i-1" || *d.Allocatable.Count != 12 ||
		!slices.Equal(d.TopologyKeys, []string{"example.com/rack"}) {
		t.Errorf("the driver is %+v, want NodeID %q, *d.Allocatable.Count 12 and TopologyKeys %v",
			d, "i-1", []string{"example.com/rack"})
	}
	reported(t, admin, name, "has the volume in use, the label and the ID", func(node *v1.Node) bool {
		return slices.Equal(node.Status.VolumesInUse, []v1.UniqueVolumeName{inUse}) &&
			node.Labels["example.com/rack"] == "r1" &&
			node.Annotations["csi.volume.kubernetes.io/nodeid"] == `{"a.example.com":"i-1"}`
	})
	nodes := client(t, cfg)
	served(t, nodes, "served with the volume in use", func(_ *nodev1.Node, node *v1.Node) bool {
		return slices.Contains(node.Status.VolumesInUse, inUse)
	})

	// Another ID, another count, another driver.
	changed := proto.CloneOf(driver)
	changed.NodeId, changed.AllocatableVolumes = "i-2", proto.Int64(3)
	level.Put("driver/a.example.com", &enginev1.StorageItem{Driver: changed})
	level.Put("driver/b.example.com", &enginev1.StorageItem{Driver: &enginev1.CSIDriver{Name: "b.example.com", NodeId: "j"}})
	csiNode(t, admin, name, "has the changed driver", func(object *storagev1.CSINode) bool {
		return drivers("a.example.com", "b.example.com")(object) && slices.ContainsFunc(object.Spec.Drivers,
			func(d storagev1.CSINodeDriver) bool { return d.NodeID == "i-2" && *d.Allocatable.Count == 3 })
	})

	healthOfStorage(t, admin, name, level, changed)

	// Without syncloop, and with one that does not know its drivers yet, nothing is removed; a deregistration is.
	if err := stopSyncLoop(); err != nil {
		t.Fatal(err)
	}
	level.Close()
	again := stream.NewLevel[*enginev1.StorageItem](stream.Config{})
	defer again.Close()
	again.Put("driver/b.example.com", &enginev1.StorageItem{Driver: &enginev1.CSIDriver{Name: "b.example.com", NodeId: "j"}})
	serve(again)
	reported(t, admin, name, "has no volume in use", func(node *v1.Node) bool { return len(node.Status.VolumesInUse) == 0 })
	again.Delete("driver/b.example.com")
	csiNode(t, admin, name, "has the driver that may come again", drivers("a.example.com"))
	reported(t, admin, name, "has only its ID", func(node *v1.Node) bool {
		return node.Annotations["csi.volume.kubernetes.io/nodeid"] == `{"a.example.com":"i-2"}`
	})

	// A Node that is registered again gets a CSINode of its own, with the registered drivers.
	again.Put("driver/b.example.com", &enginev1.StorageItem{Driver: &enginev1.CSIDriver{Name: "b.example.com", NodeId: "j"}})
	if err := admin.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	fresh := reported(t, admin, name, "is registered again", func(again *v1.Node) bool { return again.UID != node.UID })
	csiNode(t, admin, name, "belongs to the new Node", func(object *storagev1.CSINode) bool {
		return object.OwnerReferences[0].UID == fresh.UID && drivers("b.example.com")(object)
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// healthOfStorage checks that what a driver reports of its storage is in the status of the CSINode, and removed from
// it.
func healthOfStorage(
	t *testing.T, admin kubernetes.Interface, name string, level *stream.Level[*enginev1.StorageItem],
	driver *enginev1.CSIDriver,
) {
	t.Helper()
	for _, conditions := range [][]storagev1.StorageHealthCondition{
		{
			{Status: storagev1.StorageDegraded, Reason: "Rebuild", Message: "a disk was replaced"},
			{Status: storagev1.StorageUnreachable, Reason: "Network", AccessMode: ptr.To(v1.ReadWriteMany)},
		},
		{{Status: storagev1.StorageDegraded, Reason: "Rebuild"}},
		nil,
	} {
		report := &storagev1.StorageHealth{Name: driver.GetName(), HealthConditions: conditions}
		data, err := report.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		driver.StorageHealth = data
		level.Put("driver/"+driver.GetName(), &enginev1.StorageItem{Driver: proto.CloneOf(driver)})
		csiNode(t, admin, name, "has the health of the storage", func(object *storagev1.CSINode) bool {
			var got []storagev1.StorageHealthCondition
			for _, health := range object.Status.StorageHealth {
				got = append(got, health.HealthConditions...)
			}
			return equality.Semantic.DeepEqual(got, conditions)
		})
	}
}

// TestANodeIsNotReadyWithoutItsCSINode uses a user who may write the Node and not the CSINode.
func TestANodeIsNotReadyWithoutItsCSINode(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	const name, user = "unstored", "node-without-storage"
	allow(t, admin, user)
	cfg := quick(member(t, name, c.Kubeconfig(t, user)))
	servePLEG(t, cfg)
	serveSyncLoop(t, cfg)
	nodes := client(t, cfg)
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	reported(t, admin, name, "says why it is not ready", func(node *v1.Node) bool {
		ready := condition(node, v1.NodeReady)
		return ready.Status == v1.ConditionFalse && ready.Reason == "KubeletNotReady" &&
			contains(ready.Message, "failed to initialize CSINode: ", "is forbidden")
	})
	waitsFor(t, nodes, "the API server does not permit writing the CSINode")
	permit(t, admin, user, "storage.k8s.io", "csinodes")
	reported(t, admin, name, "is ready", func(node *v1.Node) bool {
		return condition(node, v1.NodeReady).Status == v1.ConditionTrue
	})
	eventually.That(t, "nothing is wrong with it", func() bool {
		health, err := nodes.GetHealth(t.Context(), &nodev1.GetHealthRequest{})
		return err == nil && !contains(strings.Join(health.GetReasons(), "; "), "CSINode")
	})
}

// allow lets a user do what a node does except for the CSINode.
func allow(t *testing.T, admin kubernetes.Interface, user string) {
	t.Helper()
	permit(t, admin, user, "", "nodes", "nodes/status", "events")
	permit(t, admin, user, "events.k8s.io", "events")
	permit(t, admin, user, "coordination.k8s.io", "leases")
}

// permit lets a user do everything with resources of a group.
func permit(t *testing.T, admin kubernetes.Interface, user, group string, resources ...string) {
	t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: user + "-"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{group}, Resources: resources}},
	}
	role, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// contains reports whether a text has all words.
func contains(text string, words ...string) bool {
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
}
