// Package nodevolumes makes, attaches, expands and deletes the volumes of the storage classes of a node without an API
// server. It does there what the provisioner, the attacher and the resizer of Kubernetes do in a cluster, by calls of
// the controller service of the CSI driver, which runs on the node. Package csi stages and publishes the volumes, and
// package nodeclaims has the claims.
//
//	the class binds at once, or a pod uses the claim ──► CreateVolume
//	a pod mounts it ──► ControllerPublishVolume ──► csi
//	no pod uses it ──► ControllerUnpublishVolume
//	the claim grows ──► ControllerExpandVolume ──► csi expands the file system
//	the claim is deleted ──► ControllerUnpublishVolume ──► DeleteVolume, or the volume is retained
//
//	STATE_DIR/persistentvolumes/NAME.json        the record of a volume
//	STATE_DIR/persistentvolumes/NAME.released    its claim was deleted
//
// A record is on disk before the driver is asked to make a volume, and until it has deleted it. The driver's calls are
// idempotent, and the name identifies the volume. So a process that is killed at any point leaves nothing that the next
// one does not know: a creation without an answer is asked for again, also when the volume is not wanted any more,
// because only the answer has the ID with which it can be deleted.
//
// Volumes are made and attached by the caller that wants them, so that a driver that hangs delays its own pods only.
// Run does the rest, each volume in a goroutine of its own, and makes the volumes of claims that do not wait for a pod.
package nodevolumes

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/dirlock"
)

// keyClaim is the name of a claim in the log.
const keyClaim = "claim"

// errStarting is returned before Connect.
var errStarting = errors.New("syncloop is starting: the CSI drivers are not known yet")

// errMaking is returned for a volume that is still being made.
var errMaking = errors.New("its volume is being made")

// Objects provides the objects that configmux has; *configobjects.Configmux implements it.
type Objects interface {
	// StorageClass returns a storage class. apierrors.IsNotFound is true for its error only if it is certain that there is
	// none.
	StorageClass(name string) (*storagev1.StorageClass, error)
	// Secret returns a secret. Its errors contain nothing of the secret.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Drivers are the CSI drivers of the node; *csidrivers.Drivers implements it.
type Drivers interface {
	// Conn returns the connection to a driver. It fails if the driver is not registered.
	Conn(name string) (grpc.ClientConnInterface, error)
	// Nodes returns the descriptions of this node by all drivers.
	Nodes() []csidrivers.Node
}

// Config holds the parameters of Volumes. All fields except Tracer, Logger and Timeout are required.
type Config struct {
	// Dir is the directory of the records. It is created in an existing directory.
	Dir string
	// Objects has the storage classes and the secrets.
	Objects Objects
	// Changed is called for a claim that may be usable now, or whose volume has changed. It must not block.
	Changed func(namespace, name string)
	// Clock is the clock of retries.
	Clock clock.Clock
	// Tracer creates a span for each call; it may be nil.
	Tracer trace.Tracer
	// Logger logs what is made and deleted; slog.Default if nil.
	Logger *slog.Logger
	// Timeout is the deadline of a call; that of package csi if zero.
	Timeout time.Duration
}

// Volume is a volume of a claim.
type Volume struct {
	// PV is the persistent volume; nil while there is none. It must not be changed.
	PV *v1.PersistentVolume
	// Capacity is the size that pods can use. It is smaller than the volume until the node has expanded the file system.
	Capacity resource.Quantity
	// Problem is why the last step has failed; nil if it has not.
	Problem error
}

// entry is a volume, or the name of one that is not there yet.
type entry struct {
	name string
	// claim is its claim: namespace, name and UID.
	claim v1.ObjectReference
	// rec is what is on disk; nil before the driver is asked. Only who has the lock of the name changes it.
	rec *record
	// released is true after the claim was deleted.
	released bool
	// makers is the number of callers that make it.
	makers int
	// immediate is the claim if it is to have a volume without waiting for a pod; otherwise nil.
	immediate *v1.PersistentVolumeClaim
	// wanted is the size that the claim asks for.
	wanted  resource.Quantity
	problem error
}

// Volumes are the volumes of the node's storage classes. Create them with New. The methods are safe for concurrent use.
type Volumes struct {
	cfg  Config
	disk disk
	// locks are the locks of the volumes, by name.
	locks dirlock.Locks
	// loading receives the records that are being read; nil if none are. Only New and Run use it.
	loading <-chan loaded
	// wake has capacity one, because a wake-up covers everything.
	wake chan struct{}

	mu      sync.Mutex
	entries map[string]*entry
	// unread is why the records could not be listed; nil when they were. Until then nobody knows which claim has a volume,
	// so nothing is made, attached, detached or deleted.
	unread error
	// hurry is true if what has failed is to be tried again at once.
	hurry   bool
	drivers Drivers
	uses    func(driver, handle string) bool
}

// New returns the volumes that an earlier process has left. If their records cannot be listed, Run tries again.
func New(cfg Config) *Volumes {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return newVolumes(cfg, folder{dir: cfg.Dir, logger: cfg.Logger})
}

func newVolumes(cfg Config, disk disk) *Volumes {
	if cfg.Tracer == nil {
		cfg.Tracer = telemetry.Off()
	}
	v := &Volumes{cfg: cfg, disk: disk, wake: make(chan struct{}, 1), entries: map[string]*entry{}}
	if v.load(); v.unread != nil {
		v.cfg.Logger.Warn("claims of storage classes wait, because the records of their volumes cannot be listed; it is tried again",
			telemetry.KeyError, v.unread)
	}
	return v
}

// Connect sets the CSI drivers of the node, and what reports whether a volume is staged or published, or about to be.
func (v *Volumes) Connect(drivers Drivers, uses func(driver, handle string) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drivers, v.uses = drivers, uses
}

// Check looks at everything again, because drivers, storage classes or the use of volumes may have changed. It does not
// block.
func (v *Volumes) Check() { v.signal() }

// Tell notifies the claims that wait for something, because drivers or storage classes may have changed.
func (v *Volumes) Tell() {
	v.mu.Lock()
	v.hurry = true
	var claims []v1.ObjectReference
	for _, e := range v.entries {
		if e.problem != nil && !e.released {
			claims = append(claims, e.claim)
		}
	}
	v.mu.Unlock()
	for _, claim := range claims {
		v.cfg.Changed(claim.Namespace, claim.Name)
	}
	v.signal()
}

// TellSecret notifies the claims whose volumes need a secret for the driver's calls of the node, because it has
// changed.
func (v *Volumes) TellSecret(namespace, name string) {
	v.mu.Lock()
	var claims []v1.ObjectReference
	for _, e := range v.entries {
		if e.rec != nil && !e.released && needs(e.rec.PV.Spec.CSI, namespace, name) {
			claims = append(claims, e.claim)
		}
	}
	v.mu.Unlock()
	for _, claim := range claims {
		v.cfg.Changed(claim.Namespace, claim.Name)
	}
}

// needs reports whether a secret is one of those for the driver's calls of the node.
func needs(source *v1.CSIPersistentVolumeSource, namespace, name string) bool {
	return slices.ContainsFunc([]*v1.SecretReference{
		source.NodeStageSecretRef, source.NodePublishSecretRef, source.NodeExpandSecretRef,
	}, func(ref *v1.SecretReference) bool {
		return ref != nil && ref.Namespace == namespace && ref.Name == name
	})
}

// Known returns what is known of the volume of a claim.
func (v *Volumes) Known(claim types.UID) Volume {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.entries {
		if e.claim.UID == claim && !e.released {
			return e.volume()
		}
	}
	return Volume{Problem: v.unread}
}

// Released returns the volumes whose claims were deleted, sorted by name.
func (v *Volumes) Released() []Volume {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []Volume
	for _, name := range slices.Sorted(maps.Keys(v.entries)) {
		if e := v.entries[name]; e.released && e.rec != nil {
			one := e.volume()
			one.PV = e.rec.PV.DeepCopy()
			one.PV.Status.Phase = v1.VolumeReleased
			all = append(all, one)
		}
	}
	return all
}

// volume returns what users see of a volume. The caller holds mu.
func (e *entry) volume() Volume {
	one := Volume{Problem: e.problem}
	if e.rec != nil && e.rec.Phase == made {
		one.PV, one.Capacity = e.rec.PV, e.rec.Told
	}
	return one
}

// Release gives up the volume of a deleted claim that no pod uses: it is deleted or, if its class says so, retained.
// The claim is forgotten when Release has returned without an error.
func (v *Volumes) Release(claim types.UID) error {
	v.mu.Lock()
	if err := v.unread; err != nil {
		v.mu.Unlock()
		return err
	}
	var e *entry
	for _, one := range v.entries {
		if one.claim.UID == claim && !one.released {
			e = one
		}
	}
	if e == nil {
		v.mu.Unlock()
		return nil
	}
	rec, busy := e.rec, e.makers > 0
	if rec == nil && !busy {
		delete(v.entries, e.name)
	}
	v.mu.Unlock()
	switch {
	case busy:
		return errMaking
	case rec == nil:
		return nil
	}
	if err := v.disk.release(e.name); err != nil {
		return err
	}
	v.mu.Lock()
	e.released, e.problem = true, nil
	v.mu.Unlock()
	if rec.PV.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRetain && rec.Phase == made {
		v.cfg.Logger.Warn("the volume of a deleted claim is retained, as its storage class says: delete it in the storage system, and then with quartet delete pv",
			telemetry.KeyVolume, rec.PV.Spec.CSI.VolumeHandle, "driver", rec.PV.Spec.CSI.Driver, keyClaim, e.claimName(),
			"persistentVolume", e.name)
	}
	v.signal()
	return nil
}

// reserve returns the volume of a claim, with a name if there is none. The volume is named by the claim's UID, unless
// another volume, that of a deleted claim with the same UID, has the name still. done must be called.
func (v *Volumes) reserve(claim *v1.PersistentVolumeClaim) (e *entry, done func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, one := range v.entries {
		if one.claim.UID == claim.UID && !one.released {
			e = one
		}
	}
	if e == nil {
		name := "pvc-" + string(claim.UID)
		if v.entries[name] != nil {
			name = "pvc-" + uuid.NewString()
		}
		e = &entry{name: name, claim: referenceTo(claim)}
		v.entries[name] = e
	}
	e.makers++
	return e, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		e.makers--
	}
}

// claimName returns the name of the claim in the form of Kubernetes.
func (e *entry) claimName() string { return e.claim.Namespace + "/" + e.claim.Name }

// put writes a record. The caller has the lock of the volume.
func (v *Volumes) put(e *entry, rec *record) error {
	if err := v.disk.save(e.name, rec); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	e.rec = rec
	return nil
}

// forget removes the record of a volume that is not there. The caller has the lock of the volume.
func (v *Volumes) forget(e *entry) error {
	if err := v.disk.forget(e.name); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	e.rec = nil
	if e.released {
		delete(v.entries, e.name)
	}
	return nil
}

// record returns the record of a volume; nil if there is none.
func (v *Volumes) record(e *entry) *record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return e.rec
}

// note records why a step has failed, for users; nil if it has not.
func (v *Volumes) note(e *entry, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e.problem = err
}

// signal wakes Run.
func (v *Volumes) signal() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}
