package csi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
)

// volume is a volume of a pod with everything that its calls need, except what they read from the cluster.
type volume struct {
	identity
	place
	persistentvolumes.Request
	// object is the CSIDriver; nil if the cluster has none.
	object *storagev1.CSIDriver
	inline bool
	// attach is true if the cluster must attach the volume to the node.
	attach   bool
	readOnly bool
	fsType   string
	// attributes are the volume's, and options its mount options, without that for the label of the request.
	attributes map[string]string
	options    []string
	modes      []v1.PersistentVolumeAccessMode
	// stageSecret, publishSecret and expandSecret name secrets; nil if there is none.
	stageSecret, publishSecret, expandSecret *v1.SecretReference
	// used has the secrets that this attempt to mount the volume has read.
	used []*v1.Secret
	// ungrown is why this attempt could not expand the volume, which is in use.
	ungrown error
}

// volumeOf returns the volume of a request. It fails if the driver does not support it.
func (p *Plugin) volumeOf(ctx context.Context, r persistentvolumes.Request) (volume, error) {
	v := volume{Request: r, place: placeOf(r.Dir)}
	if source := r.Volume.CSI; r.PV == nil {
		v.identity = identity{driver: source.Driver, handle: inlineHandle(r.Pod.UID, r.Volume.Name)}
		v.inline, v.attributes = true, source.VolumeAttributes
		v.readOnly = source.ReadOnly != nil && *source.ReadOnly
		if source.FSType != nil {
			v.fsType = *source.FSType
		}
		if ref := source.NodePublishSecretRef; ref != nil {
			v.publishSecret = &v1.SecretReference{Namespace: r.Pod.Namespace, Name: ref.Name}
		}
	} else {
		source := r.PV.Spec.CSI
		v.identity = identity{driver: source.Driver, handle: source.VolumeHandle}
		if r.Block {
			v.identity.block, v.identity.name = true, r.PV.Name
		}
		v.attributes, v.fsType, v.readOnly = source.VolumeAttributes, source.FSType, r.ReadOnly
		v.modes, v.options = r.PV.Spec.AccessModes, r.PV.Spec.MountOptions
		v.stageSecret, v.publishSecret = source.NodeStageSecretRef, source.NodePublishSecretRef
		v.expandSecret = source.NodeExpandSecretRef
	}
	if !isFileName(v.driver) || v.handle == "" {
		return volume{}, fmt.Errorf("the volume names no CSI driver with a volume handle: driver %q, volumeHandle %q", v.driver, v.handle)
	}
	var err error
	if v.object, err = p.cfg.Cluster.Driver(ctx, v.driver); err != nil {
		return volume{}, fmt.Errorf("%s: the CSIDriver %s is not known: %w", pluginName, v.driver, err)
	}
	v.attach = !v.inline && (v.object == nil || v.object.Spec.AttachRequired == nil || *v.object.Spec.AttachRequired)
	return v, v.checkLifecycle()
}

// secretRefs returns the names of the volume's secrets.
func (v *volume) secretRefs() []*v1.SecretReference {
	return slices.DeleteFunc([]*v1.SecretReference{v.stageSecret, v.publishSecret, v.expandSecret},
		func(ref *v1.SecretReference) bool { return ref == nil })
}

// checkLifecycle checks that the driver supports inline volumes, or persistent ones.
func (v *volume) checkLifecycle() error {
	mode := storagev1.VolumeLifecyclePersistent
	if v.inline {
		mode = storagev1.VolumeLifecycleEphemeral
	}
	switch {
	case v.object == nil && !v.inline:
		return nil
	case v.object == nil:
		return fmt.Errorf("%s: mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (no CSIDriver object)", pluginName, mode, v.driver)
	case slices.Contains(v.object.Spec.VolumeLifecycleModes, mode):
		return nil
	}
	return fmt.Errorf("%s: mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (only supports %q)", pluginName, mode, v.driver, v.object.Spec.VolumeLifecycleModes)
}

// republishes reports whether the driver must be asked again to publish a published volume.
func (v *volume) republishes() bool {
	return v.object != nil && v.object.Spec.RequiresRepublish != nil && *v.object.Spec.RequiresRepublish
}

// record returns the record of the pod's volume.
func (v *volume) record(node string) record {
	return record{
		identity: v.identity, place: v.place, phase: begun, attach: v.attach, inline: v.inline, node: node, label: v.Label,
	}
}

// capability returns the volume's capability for a driver. group is for a driver that changes owners itself.
func (v *volume) capability(n node, group *int64) *csi.VolumeCapability {
	mode := v1.ReadWriteOnce
	if len(v.modes) > 0 {
		mode = v.modes[0]
	}
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: accessMode(mode, n)}}
	if v.identity.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return c
	}
	mount := &csi.VolumeCapability_MountVolume{FsType: v.fsType, MountFlags: v.options}
	if v.Label != "" {
		mount.MountFlags = append(slices.Clone(v.options), selinux.MountOption(v.Label))
	}
	if group != nil {
		mount.VolumeMountGroup = strconv.FormatInt(*group, 10)
	}
	c.AccessType = &csi.VolumeCapability_Mount{Mount: mount}
	return c
}

// accessMode returns an access mode for a driver. One without the capability SINGLE_NODE_MULTI_WRITER knows fewer
// modes.
func accessMode(mode v1.PersistentVolumeAccessMode, n node) csi.VolumeCapability_AccessMode_Mode {
	supported := n.can[csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	switch {
	case mode == v1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == v1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOnce && supported:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOncePod && supported:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == v1.ReadWriteOnce, mode == v1.ReadWriteOncePod:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return csi.VolumeCapability_AccessMode_UNKNOWN
}

// isForOnePod reports whether only one pod may use the volume.
func (v *volume) isForOnePod() bool {
	return len(v.modes) == 1 && v.modes[0] == v1.ReadWriteOncePod
}

// groupOf returns the group that syncloop gives the content to; nil if it leaves owners unchanged. As in the kubelet,
// the CSIDriver's fsGroupPolicy decides.
func (v *volume) groupOf() (*int64, error) {
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if v.object != nil {
		if v.object.Spec.FSGroupPolicy == nil || *v.object.Spec.FSGroupPolicy == "" {
			return nil, fmt.Errorf("%s: mounter.SetupAt failed to check fsGroup policy: expected valid fsGroupPolicy, received nil value or empty string", pluginName)
		}
		policy = *v.object.Spec.FSGroupPolicy
	}
	switch {
	case v.FSGroup == nil || v.readOnly || v.identity.block || policy == storagev1.NoneFSGroupPolicy:
		return nil, nil
	case policy == storagev1.FileFSGroupPolicy:
		return v.FSGroup, nil
	case v.fsType == "":
		return nil, nil
	case v.inline, slices.Contains(v.modes, v1.ReadWriteOnce), slices.Contains(v.modes, v1.ReadWriteOncePod):
		return v.FSGroup, nil
	}
	return nil, nil
}

// podInfo returns the attributes of a pod for a driver that wants them.
func (v *volume) podInfo() map[string]string {
	if v.object == nil || v.object.Spec.PodInfoOnMount == nil || !*v.object.Spec.PodInfoOnMount {
		return nil
	}
	return map[string]string{
		"csi.storage.k8s.io/pod.name":            v.Pod.Name,
		"csi.storage.k8s.io/pod.namespace":       v.Pod.Namespace,
		"csi.storage.k8s.io/pod.uid":             string(v.Pod.UID),
		"csi.storage.k8s.io/serviceAccount.name": v.Pod.Spec.ServiceAccountName,
		"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(v.inline),
	}
}

// merged returns the values of all maps; the last one wins. It is nil if there is none.
func merged(all ...map[string]string) map[string]string {
	var result map[string]string
	for _, one := range all {
		if result == nil && len(one) > 0 {
			result = map[string]string{}
		}
		maps.Copy(result, one)
	}
	return result
}
