package csi

import (
	"context"
	"fmt"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The kubelet's reasons of events.
const (
	eventExpanded  = "FileSystemResizeSuccessful"
	eventExpansion = "VolumeResizeFailed"
	eventReadOnly  = "FileSystemResizeFailed"
)

// Claims records the progress of an expansion in the status of a claim, and returns the changed claim.
type Claims interface {
	// MarkExpanding records that the expansion on the node begins.
	MarkExpanding(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error)
	// MarkExpanded records the size of the expanded volume, and that nothing is left to do.
	MarkExpanded(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) (*v1.PersistentVolumeClaim,
		error)
	// MarkExpansionFailed records why an expansion has failed. If it is infeasible, it is not retried until the user has
	// changed the claim.
	MarkExpansionFailed(ctx context.Context, claim *v1.PersistentVolumeClaim, cause error, infeasible bool) (
		*v1.PersistentVolumeClaim, error)
}

// Events receives what happens to the volumes of pods; *podevents.Recorder implements it.
type Events interface {
	// Normal and Warning record an event of a pod: a reason in one word, and a sentence.
	Normal(ctx context.Context, pod *v1.Pod, container, reason, message string)
	Warning(ctx context.Context, pod *v1.Pod, container, reason, message string)
	// Claim records an event of a claim, of type v1.EventTypeNormal or v1.EventTypeWarning.
	Claim(claim *v1.PersistentVolumeClaim, kind, reason, message string)
}

// noopEvents is an Events that discards events.
type noopEvents struct{}

// Claim implements Events.
func (noopEvents) Claim(*v1.PersistentVolumeClaim, string, string, string) {}

// Normal implements Events.
func (noopEvents) Normal(context.Context, *v1.Pod, string, string, string) {}

// Warning implements Events.
func (noopEvents) Warning(context.Context, *v1.Pod, string, string, string) {}

// sizes has what is known of expansions. It is not on disk: a driver that is asked again finds nothing to do.
type sizes struct {
	mu sync.Mutex
	of map[identity]size
}

// size is the size of a volume on this node.
type size struct {
	present resource.Quantity
	// failed is true if the last expansion has failed for sure, and refused if the driver does not expand the volume while
	// it is in use.
	failed, refused bool
}

func (s *sizes) get(v identity) (size, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.of[v]
	return known, ok
}

func (s *sizes) put(v identity, known size) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[v] = known
}

func (s *sizes) drop(v identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, v)
}

// expand expands a published volume on the node if its claim asks for it. A failure keeps a volume that is just being
// mounted from its pod; that of a volume in use is an event, and it is tried again when the pod is looked at.
func (p *Plugin) expand(ctx context.Context, v *volume, mounting bool) error {
	if v.Claim == nil {
		return nil
	}
	unlock, err := p.lock(ctx, v.identity, v.driver)
	if err != nil {
		return err
	}
	defer unlock()
	known, ok := p.sizes.get(v.identity)
	present := &known.present
	if !ok {
		known.present, present = v.Claim.Status.Capacity[v1.ResourceStorage], nil
	}
	wanted := expansionOf(v.Claim, v.PV, present)
	switch {
	case wanted == nil, known.refused:
		p.sizes.put(v.identity, known)
		return nil
	case v.readOnly:
		message := fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", v.PV.Name)
		p.cfg.Events.Warning(ctx, v.Pod, "", eventReadOnly, message)
		p.cfg.Events.Claim(v.Claim, v1.EventTypeWarning, eventReadOnly, message)
		known.present = wanted.size
		p.sizes.put(v.identity, known)
		return nil
	}
	begun := p.cfg.Clock.Now()
	claim, called, err := p.callExpand(ctx, v, wanted)
	if !mounting {
		_ = p.measure(v, "volume_fs_resize", begun, err)
	}
	if err != nil {
		err = p.expansionFailed(ctx, v, claim, wanted, &known, err)
		p.sizes.put(v.identity, known)
		if err != nil && !mounting {
			v.ungrown = err
			p.cfg.Events.Warning(ctx, v.Pod, "", eventExpansion, fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", v.PV.Name, err))
			return nil
		}
		return err
	}
	known.present, known.failed = wanted.size, false
	p.sizes.put(v.identity, known)
	if !called {
		return nil
	}
	message := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", v.PV.Name, p.cfg.NodeName)
	p.cfg.Events.Normal(ctx, v.Pod, "", eventExpanded, message)
	p.cfg.Events.Claim(v.Claim, v1.EventTypeNormal, eventExpanded, message)
	return nil
}

// callExpand asks the driver to expand a volume, and records the progress in the claim, which it returns. It is not
// called if the cluster has expanded the volume completely, and the driver has nothing to do on the node.
func (p *Plugin) callExpand(
	ctx context.Context, v *volume, wanted *expansion,
) (claim *v1.PersistentVolumeClaim, called bool, err error) {
	claim = v.Claim
	n, err := p.node(ctx, v.driver, false)
	if err != nil {
		return claim, false, err
	}
	if !n.can[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] {
		if wanted.begins {
			err = status.Errorf(codes.Unimplemented, "NodeExpand is not supported by the CSI driver %s", v.driver)
		}
		return claim, false, err
	}
	secrets, err := p.secret(ctx, v, "NodeExpandSecretRef", v.expandSecret)
	if err != nil {
		return claim, false, err
	}
	if wanted.begins {
		if claim, err = p.cfg.Claims.MarkExpanding(ctx, claim); err != nil {
			return v.Claim, false, err
		}
	}
	plain := *v // as in the kubelet, the capability is without the SELinux label
	plain.Label = ""
	request := &csi.NodeExpandVolumeRequest{
		VolumeId: v.handle, VolumePath: p.driverPath(p.books.target(v.place)), Secrets: secrets,
		CapacityRange: &csi.CapacityRange{RequiredBytes: wanted.size.Value()}, VolumeCapability: plain.capability(n, nil),
	}
	if n.can[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] {
		request.StagingTargetPath = p.driverPath(p.books.staging(v.identity))
	}
	if _, err := n.NodeExpandVolume(ctx, request); err != nil {
		return claim, true, fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err)
	}
	if wanted.said {
		return claim, true, nil
	}
	claim, err = p.cfg.Claims.MarkExpanded(ctx, claim, wanted.size)
	return claim, true, err
}

// expansionFailed records a failure in the claim if it is final, and returns the error for the user; nil if the volume
// may be used as it is.
func (p *Plugin) expansionFailed(
	ctx context.Context, v *volume, claim *v1.PersistentVolumeClaim, wanted *expansion, known *size, err error,
) error {
	code := status.Code(err)
	if _, ok := status.FromError(err); !ok || !isFinal(err) {
		return err // it is tried again
	}
	if claim != nil && wanted.begins {
		byAnswer := code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound
		infeasible := isInfeasible(claim, wanted.size, byAnswer, known.failed)
		if _, failed := p.cfg.Claims.MarkExpansionFailed(ctx, claim, err, infeasible); failed != nil {
			p.cfg.Logger.WarnContext(ctx, "the failure of an expansion cannot be recorded in the claim", "driver", v.driver,
				"claim", claim.Namespace+"/"+claim.Name, "error", failed)
		}
		known.failed = true
	}
	if code == codes.FailedPrecondition {
		known.refused = true // the driver expands it when it is not in use
		return nil
	}
	return err
}
