package show

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// putStorage adds a storage class with its driver, a claim that is bound to a volume of it, one that waits for the
// driver, and the volume of a deleted claim.
func (n *node) putStorage() {
	n.t.Helper()
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "dirs.example.com", Parameters: map[string]string{"kind": "ssd"},
		AllowVolumeExpansion: ptr.To(true),
	}
	driver := &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: "dirs.example.com"},
		Spec: storagev1.CSIDriverSpec{
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
				storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
			},
		},
	}
	n.config.objects = append(n.config.objects,
		&configv1.ObjectSummary{Kind: "StorageClass", Name: "fast", Source: "file", Path: "/m/class.yaml",
			StorageClass: encoded(n.t, class), CreatedAt: timestamppb.New(ago(time.Hour))},
		&configv1.ObjectSummary{Kind: "CSIDriver", Name: "dirs.example.com", Source: "local", CsiDriver: encoded(n.t, driver),
			CreatedAt: timestamppb.New(ago(time.Hour))})
	bound, waiting := newClaim("shop", "db", "u1", v1.ReadWriteOnce), newClaim("shop", "late", "u2", v1.ReadWriteOnce)
	for _, claim := range []*v1.PersistentVolumeClaim{bound, waiting} {
		claim.Spec.StorageClassName, claim.Annotations = ptr.To("fast"), nil
		n.putDocument(claim)
	}
	bound.Spec.VolumeName = "pvc-u1"
	bound.Status = v1.PersistentVolumeClaimStatus{
		Phase: v1.ClaimBound, AccessModes: bound.Spec.AccessModes,
		Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("512Mi")},
	}
	n.engine.claims = append(n.engine.claims,
		&enginev1.Claim{Claim: encoded(n.t, bound), PersistentVolume: encoded(n.t, newPV("pvc-u1", "db", v1.VolumeBound)), UsedBy: []string{"shop/db-node-1"}},
		&enginev1.Claim{Claim: encoded(n.t, waiting), Problem: "the driver is not registered"})
	n.engine.released = append(n.engine.released, &enginev1.ReleasedVolume{
		PersistentVolume: encoded(n.t, newPV("pvc-u0", "old", v1.VolumeReleased)), Problem: "the driver is not registered",
	})
}

func newPV(name, claim string, phase v1.PersistentVolumePhase) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(ago(time.Minute))},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: "fast",
			Capacity:                      v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &v1.ObjectReference{Namespace: "shop", Name: claim},
			PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: "dirs.example.com", VolumeHandle: "h-" + name},
			},
		},
		Status: v1.PersistentVolumeStatus{Phase: phase},
	}
}

// encoded returns the encoding of an object.
func encoded(t *testing.T, object interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	data, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestGetStorageClassesAndTheirVolumes(t *testing.T) {
	n := newNode(t)
	n.serve(layout.ConfigMux)
	n.serve(layout.SyncLoop)
	for kind, want := range map[string]string{
		"sc": "There are no storage classes.\n", "csidrivers": "There are no CSIDrivers.\n", "pv": "This node has no persistent volumes of its own; 'kubectl get pv' shows those of a cluster.\n",
	} {
		if out := n.must("get", kind); out != want {
			t.Errorf("%s: %s", kind, out)
		}
	}
	n.putStorage()
	for file, command := range map[string]string{
		"storageclasses-wide.txt":    "get storageclasses -o wide",
		"storageclass.yaml":          "get sc fast -o yaml",
		"csidrivers.txt":             "get csidrivers",
		"persistentvolumes-wide.txt": "get pv -o wide",
		"claims-class.txt":           "get pvc",
		"describe-claim-class.txt":   "describe pvc shop/db",
		"describe-claim-waits.txt":   "describe pvc shop/late",
		"describe-storageclass.txt":  "describe storageclass fast",
	} {
		golden(t, file, n.must(strings.Fields(command)...))
	}
	for command, want := range map[string]string{
		"get sc -o name": "storageclass/fast\n", "get csidriver -o name": "csidriver/dirs.example.com\n",
		"get pv -o name": "persistentvolume/pvc-u0\npersistentvolume/pvc-u1\n",
		"get pv pvc-u1 -o jsonpath={.spec.csi.volumeHandle}": "h-pvc-u1",
	} {
		if out := n.must(strings.Fields(command)...); strings.TrimSpace(out) != strings.TrimSpace(want) {
			t.Errorf("%s: %s", command, out)
		}
	}
	for command, want := range map[string]string{
		"get sc none":      `there is no storageclass "none": 'quartet get storageclasses' shows all`,
		"describe sc none": `there is no storageclass "none": 'quartet get storageclasses' shows all`,
		"get pv none":      `there is no persistentvolume "none": 'quartet get persistentvolumes' shows all`,
	} {
		if _, _, err := n.run(strings.Fields(command)...); err == nil || err.Error() != want {
			t.Errorf("%s: %v", command, err)
		}
	}
}
