package csimigration_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/csimigration"
)

// TestTheKindsThatDriversHaveReplaced has each of the kubelet's list.
func TestTheKindsThatDriversHaveReplaced(t *testing.T) {
	for driver, source := range map[string]v1.PersistentVolumeSource{
		"ebs.csi.aws.com":          {AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1", FSType: "ext4"}},
		"disk.csi.azure.com":       {AzureDisk: &v1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/subscriptions/a/disks/d"}},
		"file.csi.azure.com":       {AzureFile: &v1.AzureFilePersistentVolumeSource{SecretName: "s", ShareName: "f"}},
		"cinder.csi.openstack.org": {Cinder: &v1.CinderPersistentVolumeSource{VolumeID: "c"}},
		"pd.csi.storage.gke.io":    {GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "p"}},
		"pxd.portworx.com":         {PortworxVolume: &v1.PortworxVolumeSource{VolumeID: "x"}},
		"csi.vsphere.vmware.com":   {VsphereVolume: &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[d] v.vmdk"}},
	} {
		in := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: source, ClaimRef: &v1.ObjectReference{Namespace: "shop", Name: "data"},
		}}
		out, err := csimigration.PersistentVolume(in)
		if err != nil || out.Name != "pv-1" ||
			out.Spec.CSI == nil || out.Spec.CSI.Driver != driver || out.Spec.CSI.VolumeHandle == "" {
			t.Errorf("%s: %v, %v", driver, out, err)
			continue
		}
		if in.Spec.CSI != nil || len(in.Annotations) > 0 {
			t.Errorf("%s: the persistent volume is changed: %v", driver, in)
		}
		if !csimigration.IsMigrated(out) || csimigration.IsMigrated(in) {
			t.Errorf("%s: migrated %t, and before %t", driver, csimigration.IsMigrated(out), csimigration.IsMigrated(in))
		}
	}
}

func TestWhatIsNotMigrated(t *testing.T) {
	own := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
		CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"},
	}}}
	if out, err := csimigration.PersistentVolume(own); err != nil || out != own || csimigration.IsMigrated(out) {
		t.Errorf("a volume of a driver becomes %v, %v", out, err)
	}
	wrong := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
		AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://zone"},
	}}}
	if _, err := csimigration.PersistentVolume(wrong); err == nil {
		t.Error("a wrong volume is translated")
	}
	for _, source := range []v1.VolumeSource{{ISCSI: &v1.ISCSIVolumeSource{}}, {CSI: &v1.CSIVolumeSource{}}, {}} {
		if csimigration.IsInline(&v1.Volume{VolumeSource: source}) {
			t.Errorf("%v is migrated", source)
		}
	}
}

func TestAVolumeInline(t *testing.T) {
	volume := &v1.Volume{Name: "files", VolumeSource: v1.VolumeSource{
		AzureFile: &v1.AzureFileVolumeSource{SecretName: "login", ShareName: "share", ReadOnly: true},
	}}
	if !csimigration.IsInline(volume) {
		t.Fatal("it is not migrated")
	}
	pv, err := csimigration.Inline(volume, "shop")
	if err != nil {
		t.Fatal(err)
	}
	source := pv.Spec.CSI
	if source.Driver != "file.csi.azure.com" || source.NodeStageSecretRef.Namespace != "shop" || source.NodeStageSecretRef.Name != "login" ||
		!csimigration.IsMigrated(pv) || pv.Name == "" || *pv.Spec.VolumeMode != v1.PersistentVolumeFilesystem {
		t.Errorf("got %v", pv)
	}
}
