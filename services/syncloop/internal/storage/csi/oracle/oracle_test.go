package oracle_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

const (
	nodeName   = "node-1"
	pvName     = "pv-1"
	volumeName = "files"
	// handle is the ID of a volume that the mock driver has.
	handle = "1"
)

// attachmentName is the kubelet's name of the VolumeAttachment.
var attachmentName = fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driverName+nodeName)))

// attached is what the controllers say of the attached volume.
func attached() map[string]string { return map[string]string{"device": "/dev/mock"} }

func secret() *v1.Secret {
	return &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "key"}, Data: map[string][]byte{"k": []byte("v")},
	}
}

// story is the life of a volume with two pods.
type story struct {
	mock service.Config
	// edit changes the CSIDriver, and source the volume.
	edit   func(*storagev1.CSIDriverSpec)
	source func(*v1.PersistentVolumeSpec)
	inline *v1.CSIVolumeSource
	// group is the pods' fsGroup.
	group           *int64
	readOnly, block bool
	// grows expands the volume while the first pod uses it.
	grows bool

	size string
}

func (s *story) driver() *storagev1.CSIDriver {
	spec := storagev1.CSIDriverSpec{
		AttachRequired: ptr.To(true), PodInfoOnMount: ptr.To(false),
		FSGroupPolicy:        ptr.To(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
	}
	if s.edit != nil {
		s.edit(&spec)
	}
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: spec}
}

func (s *story) pv() *v1.PersistentVolume {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pvName}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Capacity:    v1.ResourceList{v1.ResourceStorage: resource.MustParse(s.size)},
		PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: handle},
		},
	}}
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeFilesystem)
	if s.block {
		pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	}
	if s.source != nil {
		s.source(&pv.Spec)
	}
	return pv
}

func pod(uid types.UID) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + string(uid), UID: uid},
		Spec:       v1.PodSpec{ServiceAccountName: "clerk"},
	}
}

// TestTheCallsAreTheKubelets lets a kubelet's plugin and a node live through the same story with upstream's mock
// driver. The driver receives the same requests in the same order.
func TestTheCallsAreTheKubelets(t *testing.T) {
	require.Root(t, "mounting")
	for name, s := range map[string]story{
		"attached": {mock: service.Config{AttachLimit: 3, EnableTopology: true}},
		"not attached": {
			mock: service.Config{DisableAttach: true},
			edit: func(d *storagev1.CSIDriverSpec) { d.AttachRequired = ptr.To(false) },
		},
		"everything that a claim can say": {
			edit: func(d *storagev1.CSIDriverSpec) { d.PodInfoOnMount = ptr.To(true) },
			source: func(pv *v1.PersistentVolumeSpec) {
				pv.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOnce}
				pv.MountOptions = []string{"noatime", "nodev"}
				pv.CSI.FSType, pv.CSI.VolumeAttributes = "xfs", map[string]string{"pool": "fast", "a": "b"}
				pv.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "shop", Name: "key"}
				pv.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "shop", Name: "key"}
				pv.CSI.ControllerExpandSecretRef = &v1.SecretReference{Namespace: "shop", Name: "key"}
			},
			readOnly: true,
		},
		"the driver changes the group": {
			mock: service.Config{VolumeMountGroupRequired: true}, group: ptr.To[int64](4711),
			source: func(pv *v1.PersistentVolumeSpec) { pv.CSI.FSType = "ext4" },
		},
		"expanded in use": {
			mock: service.Config{NodeExpansionRequired: true}, grows: true,
			source: func(pv *v1.PersistentVolumeSpec) {
				pv.CSI.FSType, pv.MountOptions = "ext4", []string{"noatime"}
				pv.CSI.NodeExpandSecretRef = &v1.SecretReference{Namespace: "shop", Name: "key"}
			},
		},
		"a block device": {block: true},
		"inline": {
			edit: func(d *storagev1.CSIDriverSpec) {
				d.PodInfoOnMount = ptr.To(true)
				d.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
			},
			inline: &v1.CSIVolumeSource{
				Driver: driverName, ReadOnly: ptr.To(true), FSType: ptr.To("ext4"),
				VolumeAttributes: map[string]string{"size": "1"}, NodePublishSecretRef: &v1.LocalObjectReference{Name: "key"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.size = "1Gi"
			want := kubeletsCalls(t, s)
			if len(want) < 3 {
				t.Fatalf("the kubelet's plugin makes only the calls %q", want)
			}
			if got := nodesCalls(t, s, len(want)); !slices.Equal(got, want) {
				for i := range max(len(got), len(want)) {
					if i >= len(got) || i >= len(want) || got[i] != want[i] {
						t.Errorf("call %d:\n got %s\nwant %s", i, at(got, i), at(want, i))
					}
				}
			}
		})
	}
}

func at(calls []string, i int) string {
	if i < len(calls) {
		return calls[i]
	}
	return "none"
}

// places returns a directory for sockets, whose paths must be short, and a root directory.
func places(t *testing.T) (dir, root string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir, filepath.Join(dir, "root")
}

// kubeletsCalls returns the calls of the kubelet's plugin.
func kubeletsCalls(t *testing.T, s story) []string {
	t.Helper()
	dir, root := places(t)
	driver := newMock(t, dir, root, s.mock)
	k := newKubelet(t, root, driver.socket, &s)
	one, two := pod("u1"), pod("u2")
	k.setUp(&s, one)
	if s.grows {
		s.size = "2Gi"
		k.expand(&s, one, resource.MustParse(s.size))
	}
	if !s.block {
		k.setUp(&s, two)
		k.tearDown(&s, two, false)
	}
	k.tearDown(&s, one, true)
	return driver.seen()
}

// nodesCalls returns the calls of syncloop's storage.
func nodesCalls(t *testing.T, s story, want int) []string {
	t.Helper()
	dir, root := places(t)
	driver := newMock(t, dir, root, s.mock)
	n := newNode(t, root, driver.socket, &s)
	one, two := pod("u1"), pod("u2")
	n.setUp(one)
	if s.grows {
		s.size = "2Gi"
		n.setUp(one)
		eventually.That(t, "it is expanded", func() bool { return driver.count("NodeExpandVolume") == 1 })
	}
	if !s.block {
		n.setUp(two)
		n.tearDown(two)
	}
	n.tearDown(one)
	eventually.That(t, "all calls are made", func() bool { return len(driver.seen()) >= want })
	eventually.That(t, "nothing is left", func() bool { return len(left(root)) == 0 })
	return driver.seen()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// left returns the files below the root directory, except sockets.
func left(root string) (files []string) {
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && (entry.Type().IsRegular() || entry.Type() == fs.ModeSymlink) {
			files = append(files, path)
		}
		return nil
	})
	return files
}
