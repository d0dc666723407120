package syncloop

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

// TestMigratedVolumesAreMountedByTheirDriver has a claim with a persistent volume, and a volume inline, of a kind that
// a CSI driver has replaced.
func TestMigratedVolumesAreMountedByTheirDriver(t *testing.T) {
	require.Root(t, "mounting")
	const ebs = "ebs.csi.aws.com"
	c := cluster.Start(t)
	admin, root := c.Client(t), shortDir(t)
	noError(t, os.Mkdir(filepath.Join(root, "driver"), 0o700))
	driver := csidriver.New(filepath.Join(root, "driver"), csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	noError(t, driver.Serve())
	t.Cleanup(driver.Stop)
	registrar := &csiDriver{endpoint: driver.Socket(), name: ebs}
	serveOn(t, filepath.Join(root, "plugins_registry/reg.sock"), func(s *grpc.Server) {
		registrationv1.RegisterRegistrationServer(s, registrar)
	})
	_, err := admin.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		metav1.CreateOptions{})
	noError(t, err)
	kubeconfig := c.Kubeconfig(t, cluster.NodeUser("node-1"), cluster.Nodes)
	manager, stored, claimsOf := clusterVolumes(t, kubeconfig, root, telemetry.Off())
	pv := bind(t, admin, createClaim(t, admin), ebs, v1.PersistentVolumeSource{
		AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-1", FSType: "ext4"},
	})
	attach(t, admin, ebs, "vol-1", storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv})
	attach(t, admin, ebs, "vol-2", storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: ebs, VolumeHandle: "vol-2"},
		},
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
	}})
	pod := createPod(t, admin, v1.Volume{Name: "inline", VolumeSource: v1.VolumeSource{
		AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-2", FSType: "ext4"},
	}})
	noError(t, manager.Supports(pod))
	claimsOf.Use(pod)
	manager.Want(t.Context(), pod)
	eventually.That(t, "the volumes are mounted", func() bool { return manager.Ready(pod.UID) })
	names, _ := stored.volumes.VolumesInUse()
	if want := []v1.UniqueVolumeName{"kubernetes.io/csi/" + ebs + "^vol-1", "kubernetes.io/csi/" + ebs + "^vol-2"}; !slices.Equal(names, want) {
		t.Errorf("in use are %v, want %v", names, want)
	}
	dir := filepath.Join(root, "pods", string(pod.UID), "volumes/kubernetes.io~csi")
	for i, want := range []string{pv, ebs + "-vol-2"} {
		if path := manager.Path(pod, &pod.Spec.Volumes[i]); path != filepath.Join(dir, want, "mount") {
			t.Errorf("mounted at %s, want %s", path, filepath.Join(dir, want, "mount"))
		}
	}
	for _, call := range driver.Calls("NodeStageVolume") {
		request := call.Request.(*csispec.NodeStageVolumeRequest) //nolint:forcetypeassert // it is
		if request.GetVolumeCapability().GetMount().GetFsType() != "ext4" || request.GetPublishContext()["device"] != "sda" {
			t.Errorf("staged by %v", request)
		}
	}
	noError(t, manager.Release(t.Context(), pod.UID))
	eventually.That(t, "the volumes are unstaged", func() bool {
		names, _ := stored.volumes.VolumesInUse()
		return len(names) == 0
	})
	if len(driver.Wrong()) > 0 {
		t.Errorf("wrong %v", driver.Wrong())
	}
}
