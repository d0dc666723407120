package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
)

// TestAPodOfAnAPIServerHasItsClaim checks that a pod waits for its claim with a message, and starts when the claim is
// bound to a volume of this node. A kill of syncloop while the API server is away changes nothing for it. The data stay
// when it ends.
func TestAPodOfAnAPIServerHasItsClaim(t *testing.T) {
	name := nodeName(t)
	c := cluster.Start(t)
	node.RestartServices(t, "--kubeconfig", c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes))
	admin := c.Client(t).CoreV1()
	var hostname string
	awaitThat(t, "the Node is registered", func() bool {
		n, err := admin.Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			hostname = n.Labels[v1.LabelHostname]
		}
		return err == nil
	})
	_, err := admin.Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "e2e"}},
		metav1.CreateOptions{})
	if err == nil {
		_, err = admin.Pods("e2e").Create(t.Context(), claimingPod("claiming-"+name, name), metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	const failed = `MountVolume.SetUp failed for volume "data" : error processing PVC e2e/data: `
	awaitFailedMount(t, "claiming", failed+`failed to fetch PVC from API server: persistentvolumeclaims "data" not found`)
	claim := createClaim(t, admin)
	awaitFailedMount(t, "claiming", failed+"PVC is not bound")
	dir := t.TempDir()
	volume := bind(t, admin, claim, dir, "another-node")
	awaitFailedMount(t, "claiming", "no matching NodeSelectorTerms")
	unprotected := []byte(`{"metadata":{"finalizers":null}}`)
	volumes := admin.PersistentVolumes()
	_, err = volumes.Patch(t.Context(), volume.Name, types.MergePatchType, unprotected, metav1.PatchOptions{})
	if err == nil {
		err = volumes.Delete(t.Context(), volume.Name, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	bind(t, admin, claim, dir, hostname)
	p := await(t, "claiming", "Ready", ready)
	if err := os.WriteFile(filepath.Join(inside(t, p, "main"), "data", "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}

	c.APIServer.Kill(t)
	killSyncloop(t)
	if again := await(t, "claiming", "Ready", ready); fmt.Sprint(containerIDs(again)) != fmt.Sprint(containerIDs(p)) {
		t.Errorf("containers went from %v to %v", containerIDs(p), containerIDs(again))
	}
	c.APIServer.Start(t)
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	if err := admin.Pods("e2e").Delete(t.Context(), p.Name, now); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, "claiming")
	if content, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(content) != "kept" {
		t.Errorf("the volume has %q, %v", content, err)
	}
}

// claimingPod returns a pod on a node that mounts the claim "data" at /data.
func claimingPod(pod, node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: "e2e"},
		Spec: v1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false),
			Containers: []v1.Container{{
				Name: "main", Image: image, Args: []string{"sleep"}, ImagePullPolicy: v1.PullIfNotPresent,
				VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}},
		},
	}
}

// claimSpec is the part that a claim and its volume have in common.
func claimSpec() (modes []v1.PersistentVolumeAccessMode, size v1.ResourceList) {
	modes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	return modes, v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
}

func createClaim(t *testing.T, admin corev1.CoreV1Interface) *v1.PersistentVolumeClaim {
	t.Helper()
	modes, size := claimSpec()
	claim, err := admin.PersistentVolumeClaims("e2e").Create(t.Context(), &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: ptr.To(""), VolumeName: "disk",
			Resources: v1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// bind creates the local volume "disk" of the node with a hostname, and binds it to a claim, as the controllers of a
// cluster do.
func bind(
	t *testing.T, admin corev1.CoreV1Interface, claim *v1.PersistentVolumeClaim, dir, hostname string,
) *v1.PersistentVolume {
	t.Helper()
	modes, size := claimSpec()
	volume, err := admin.PersistentVolumes().Create(t.Context(), &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: modes, Capacity: size,
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: dir}},
			ClaimRef: &v1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{
					{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{hostname}},
				},
			}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now, err := admin.PersistentVolumeClaims("e2e").Get(t.Context(), claim.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Status.Phase, now.Status.Capacity = v1.ClaimBound, size
	if _, err := admin.PersistentVolumeClaims("e2e").UpdateStatus(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return volume
}
