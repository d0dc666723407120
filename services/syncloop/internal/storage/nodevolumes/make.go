package nodevolumes

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/telemetry"
	csivolumes "github.com/quartet-node/quartet/services/syncloop/internal/storage/csi"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// controller is a driver's controller service with its capabilities.
type controller struct {
	csi.ControllerClient
	onNode csi.NodeClient
	can    map[csi.ControllerServiceCapability_RPC_Type]bool
	// isTopological is true if the driver's volumes are not accessible everywhere, and node describes this node.
	isTopological bool
	node          csidrivers.Node
}

// errNoController is returned for a driver without a controller service.
var errNoController = errors.New("it has no controller service")

// controller connects to a driver. It fails with errNoController for one without a controller service.
func (v *Volumes) controller(ctx context.Context, driver string) (controller, error) {
	v.mu.Lock()
	drivers := v.drivers
	v.mu.Unlock()
	if drivers == nil {
		return controller{}, errStarting
	}
	inner, err := drivers.Conn(driver)
	if err != nil {
		return controller{}, fmt.Errorf("%w: is it running on this node?", err)
	}
	conn := csivolumes.Connect(inner, driver, v.cfg.Timeout, v.cfg.Tracer)
	c := controller{
		ControllerClient: csi.NewControllerClient(conn), onNode: csi.NewNodeClient(conn),
		can: map[csi.ControllerServiceCapability_RPC_Type]bool{},
	}
	for _, node := range drivers.Nodes() {
		if node.Driver == driver {
			c.node = node
		}
	}
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return controller{}, err
	}
	has := map[csi.PluginCapability_Service_Type]bool{}
	for _, one := range plugin.GetCapabilities() {
		has[one.GetService().GetType()] = true
	}
	c.isTopological = has[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS]
	if !has[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return c, errNoController
	}
	answer, err := c.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return c, errNoController
	}
	for _, one := range answer.GetCapabilities() {
		c.can[one.GetRpc().GetType()] = true
	}
	return c, err
}

// Provide returns the volume of a claim with a storage class, and makes it if there is none. Its error says what the
// claim waits for.
func (v *Volumes) Provide(ctx context.Context, claim *v1.PersistentVolumeClaim) (Volume, error) {
	if err := v.Unread(); err != nil {
		return Volume{}, err
	}
	e, done := v.reserve(claim)
	defer done()
	v.Want(claim)
	if rec := v.record(e); rec != nil && rec.Phase == made {
		return v.Known(claim.UID), nil
	}
	unlock, err := volumes.Locked(ctx, &v.locks, e.name, volumes.OtherCall(v.driverOf(e, claim)))
	if err != nil {
		return Volume{}, err
	}
	defer unlock()
	if rec := v.record(e); rec == nil || rec.Phase != made {
		err = v.make(ctx, e, claim)
	}
	v.note(e, err)
	if err != nil {
		return Volume{}, provisioningError(claim, err)
	}
	return v.Known(claim.UID), nil
}

// driverOf returns the driver of the volume of a claim, which may not be made yet; empty if it is not known.
func (v *Volumes) driverOf(e *entry, claim *v1.PersistentVolumeClaim) string {
	if rec := v.record(e); rec != nil {
		return rec.PV.Spec.CSI.Driver
	}
	class, err := v.cfg.Objects.StorageClass(ptr.Deref(claim.Spec.StorageClassName, ""))
	if err != nil {
		return ""
	}
	return class.Provisioner
}

// Begin makes the volume of a claim in the background, unless there is one, because its class does not wait for a pod.
// Changed is called when it is there. It is called again for a claim that has changed.
func (v *Volumes) Begin(claim *v1.PersistentVolumeClaim) {
	e, done := v.reserve(claim)
	v.mu.Lock()
	news := e.immediate == nil
	e.immediate = claim
	v.mu.Unlock()
	done()
	if news {
		v.signal()
	}
}

// begun makes the volume of a claim that does not wait for a pod. The caller has its lock.
func (v *Volumes) begun(ctx context.Context, e *entry) error {
	v.mu.Lock()
	claim, gone := e.immediate, v.entries[e.name] != e || e.released
	if !gone {
		e.makers++
	}
	v.mu.Unlock()
	if gone {
		return nil
	}
	err := v.make(ctx, e, claim)
	v.mu.Lock()
	e.makers--
	v.mu.Unlock()
	if err != nil {
		return provisioningError(claim, err)
	}
	v.cfg.Changed(claim.Namespace, claim.Name)
	return nil
}

// provisioningError returns the error of a claim whose volume cannot be made, in the words of Kubernetes' provisioners.
func provisioningError(claim *v1.PersistentVolumeClaim, err error) error {
	class := ptr.Deref(claim.Spec.StorageClassName, "")
	return fmt.Errorf("failed to provision volume with StorageClass %q: %w", class, err)
}

// Want tells the size of a claim. A volume that is smaller is expanded by Run.
func (v *Volumes) Want(claim *v1.PersistentVolumeClaim) {
	size := claim.Spec.Resources.Requests[v1.ResourceStorage]
	changed := false
	v.mu.Lock()
	for _, e := range v.entries {
		if e.claim.UID == claim.UID && !e.released && e.wanted.Cmp(size) != 0 {
			e.wanted, changed = size, true
		}
	}
	v.mu.Unlock()
	if changed {
		v.signal()
	}
}

// make makes the volume of a claim. The caller has its lock.
func (v *Volumes) make(ctx context.Context, e *entry, claim *v1.PersistentVolumeClaim) error {
	rec := v.record(e)
	if rec != nil {
		return v.create(ctx, e, rec)
	}
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	class, err := v.cfg.Objects.StorageClass(name)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: apply it, or write it into a manifest", err)
	}
	if err != nil {
		return err
	}
	if rec, err = planned(e.name, claim, class); err != nil {
		return err
	}
	c, err := v.controller(ctx, class.Provisioner)
	if err == nil && !c.can[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME] {
		err = errors.New("it does not make volumes")
	}
	if err != nil {
		return fmt.Errorf("CSI driver %s: %w", class.Provisioner, err)
	}
	if c.isTopological {
		if err := checkTopology(class, c.node.Topology); err != nil {
			return err
		}
		rec.Topology = c.node.Topology
	}
	rec.PV.CreationTimestamp = metav1.NewTime(v.cfg.Clock.Now().UTC())
	return v.create(ctx, e, rec)
}

// create asks the driver for a volume, or asks again. The caller has its lock.
func (v *Volumes) create(ctx context.Context, e *entry, rec *record) error {
	driver := rec.PV.Spec.CSI.Driver
	c, err := v.controller(ctx, driver)
	if err != nil {
		return fmt.Errorf("CSI driver %s: %w", driver, err)
	}
	request := &csi.CreateVolumeRequest{
		Name: e.name, Parameters: rec.Parameters,
		CapacityRange: &csi.CapacityRange{RequiredBytes: ptr.To(rec.size()).Value()},
	}
	for _, mode := range rec.PV.Spec.AccessModes {
		request.VolumeCapabilities = append(request.VolumeCapabilities, c.capability(rec, mode))
	}
	if rec.Topology != nil {
		here := []*csi.Topology{{Segments: rec.Topology}}
		request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: here, Preferred: here}
	}
	if request.Secrets, err = v.secret(ctx, rec.Secret); err != nil {
		return err
	}
	if v.record(e) == nil {
		if err := v.put(e, rec); err != nil {
			return err
		}
	}
	answer, err := c.CreateVolume(ctx, request)
	if err != nil {
		if csivolumes.IsFinal(err) {
			err = errors.Join(err, v.forget(e)) // there is no volume
		}
		return err
	}
	return v.created(e, rec, answer.GetVolume())
}

// created records a volume that a driver has made. One that is too small is given up.
func (v *Volumes) created(e *entry, rec *record, volume *csi.Volume) error {
	if volume.GetVolumeId() == "" {
		return fmt.Errorf("CSI driver %s has made a volume without an ID", rec.PV.Spec.CSI.Driver)
	}
	fresh := *rec
	fresh.Phase, fresh.PV = made, rec.PV.DeepCopy()
	fresh.PV.Spec.CSI.VolumeHandle, fresh.PV.Spec.CSI.VolumeAttributes = volume.GetVolumeId(), volume.GetVolumeContext()
	asked := rec.size()
	if bytes := volume.GetCapacityBytes(); bytes > 0 {
		fresh.PV.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
	}
	fresh.Told = fresh.size()
	if err := v.put(e, &fresh); err != nil {
		return err
	}
	if got := fresh.size(); got.Cmp(asked) < 0 {
		if err := v.disk.release(e.name); err != nil {
			return err
		}
		v.mu.Lock()
		e.released = true
		v.mu.Unlock()
		v.signal()
		return fmt.Errorf("created volume capacity %s less than requested capacity %s", got.String(), asked.String())
	}
	v.cfg.Logger.Info("a volume is made", keyClaim, e.claimName(), telemetry.KeyVolume, volume.GetVolumeId(),
		"driver", fresh.PV.Spec.CSI.Driver)
	return nil
}

// capability returns the capability of a volume with an access mode, for the controller service.
func (c controller) capability(rec *record, mode v1.PersistentVolumeAccessMode) *csi.VolumeCapability {
	single := c.can[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	capability := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csivolumes.AccessMode(mode, single)},
	}
	if *rec.PV.Spec.VolumeMode == v1.PersistentVolumeBlock {
		capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return capability
	}
	capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
		FsType: rec.PV.Spec.CSI.FSType, MountFlags: rec.PV.Spec.MountOptions,
	}}
	return capability
}

// first returns the capability of a volume with its first access mode.
func (c controller) first(rec *record) *csi.VolumeCapability {
	return c.capability(rec, rec.PV.Spec.AccessModes[0])
}

// secret returns the content of a secret; nothing if ref is nil.
func (v *Volumes) secret(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := v.cfg.Objects.Secret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("failed to get secret %s in namespace %s: %w", ref.Name, ref.Namespace, err)
	}
	values := map[string]string{}
	for key, value := range s.Data {
		values[key] = string(value)
	}
	return values, nil
}
