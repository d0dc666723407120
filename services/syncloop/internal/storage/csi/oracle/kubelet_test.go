package oracle_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/volume"
	kubeletcsi "k8s.io/kubernetes/pkg/volume/csi"
	volumetest "k8s.io/kubernetes/pkg/volume/testing"
)

// kubelet is the kubelet's CSI plugin with the API server's objects.
type kubelet struct {
	t       *testing.T
	plugin  volume.VolumePlugin
	staging map[string]string
}

// newKubelet returns a plugin with which the driver is registered.
func newKubelet(t *testing.T, root, socket string, s *story) *kubelet {
	t.Helper()
	objects := []runtime.Object{
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, s.driver(), secret(), s.attachment(),
	}
	client := fake.NewClientset(objects...)
	factory := informers.NewSharedInformerFactory(client, time.Minute)
	drivers := factory.Storage().V1().CSIDrivers().Lister()
	attachments := factory.Storage().V1().VolumeAttachments().Lister()
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	plugins := kubeletcsi.ProbeVolumePlugins()
	volumetest.NewFakeKubeletVolumeHostWithCSINodeName(t, root, client, plugins, nodeName, drivers, attachments)
	err := kubeletcsi.PluginHandler.RegisterPlugin(t.Context(), driverName, socket, []string{"1.0.0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kubeletcsi.PluginHandler.DeRegisterPlugin(t.Context(), driverName, socket) })
	return &kubelet{t: t, plugin: plugins[0], staging: map[string]string{}}
}

// spec is a volume as the kubelet names it.
func (s *story) spec() *volume.Spec {
	if s.inline != nil {
		return volume.NewSpecFromVolume(&v1.Volume{Name: volumeName, VolumeSource: v1.VolumeSource{CSI: s.inline}})
	}
	return volume.NewSpecFromPersistentVolume(s.pv(), s.readOnly)
}

// setUp stages a volume, if no other pod has it, and publishes it for a pod, as the kubelet's operation executor does.
func (k *kubelet) setUp(s *story, pod *v1.Pod) {
	k.t.Helper()
	spec := s.spec()
	if s.block {
		k.mapBlock(spec, pod)
		return
	}
	mounter, err := k.plugin.NewMounter(spec, pod)
	if err != nil {
		k.t.Fatal(err)
	}
	if able := k.plugin.(volume.DeviceMountableVolumePlugin); s.inline == nil && len(k.staging) == 0 {
		staging, err := able.NewDeviceMounter()
		if err != nil {
			k.t.Fatal(err)
		}
		path, err := staging.GetDeviceMountPath(spec)
		if err != nil {
			k.t.Fatal(err)
		}
		err = staging.MountDevice(spec, "", path, volume.DeviceMounterArgs{FsGroup: s.group})
		if err != nil {
			k.t.Fatal(err)
		}
		k.staging[spec.Name()] = path
	}
	if err := mounter.SetUp(volume.MounterArgs{FsGroup: s.group}); err != nil {
		k.t.Fatal(err)
	}
}

// mapBlock stages and publishes a block device.
func (k *kubelet) mapBlock(spec *volume.Spec, pod *v1.Pod) {
	k.t.Helper()
	mapper, err := k.plugin.(volume.BlockVolumePlugin).NewBlockVolumeMapper(spec, pod)
	if err != nil {
		k.t.Fatal(err)
	}
	device := mapper.(volume.CustomBlockVolumeMapper)
	if _, err := device.SetUpDevice(); err != nil {
		k.t.Fatal(err)
	}
	if _, err := device.MapPodDevice(); err != nil {
		k.t.Fatal(err)
	}
}

// expand expands the volume of a pod.
func (k *kubelet) expand(s *story, pod *v1.Pod, size resource.Quantity) {
	k.t.Helper()
	spec := s.spec()
	mounter, err := k.plugin.NewMounter(spec, pod)
	if err != nil {
		k.t.Fatal(err)
	}
	options := volume.NodeResizeOptions{
		VolumeSpec: spec, NewSize: size, DeviceMountPath: mounter.GetPath(), DeviceStagePath: k.staging[spec.Name()],
	}
	if _, err := k.plugin.(volume.NodeExpandableVolumePlugin).NodeExpand(options); err != nil {
		k.t.Fatal(err)
	}
}

// tearDown unpublishes the volume of a pod, and unstages it after the last one.
func (k *kubelet) tearDown(s *story, pod *v1.Pod, last bool) {
	k.t.Helper()
	spec := s.spec()
	if s.block {
		able := k.plugin.(volume.BlockVolumePlugin)
		unmapper, err := able.NewBlockVolumeUnmapper(spec.Name(), pod.UID)
		if err != nil {
			k.t.Fatal(err)
		}
		device := unmapper.(volume.CustomBlockVolumeUnmapper)
		if err := device.UnmapPodDevice(); err != nil {
			k.t.Fatal(err)
		}
		if err := device.TearDownDevice("", ""); err != nil {
			k.t.Fatal(err)
		}
		return
	}
	unmounter, err := k.plugin.NewUnmounter(spec.Name(), pod.UID)
	if err != nil {
		k.t.Fatal(err)
	}
	if err := unmounter.TearDown(); err != nil {
		k.t.Fatal(err)
	}
	if !last || s.inline != nil {
		return
	}
	staging, err := k.plugin.(volume.DeviceMountableVolumePlugin).NewDeviceUnmounter()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := staging.UnmountDevice(k.staging[spec.Name()]); err != nil {
		k.t.Fatal(err)
	}
}

// attachment is the VolumeAttachment of the volume.
func (s *story) attachment() *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: attached()},
	}
}
