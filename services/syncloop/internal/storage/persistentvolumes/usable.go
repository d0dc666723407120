package persistentvolumes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// refuse records what a volume is bound to that fails before it has a place; nothing if err is nil. It returns err.
func (d *dispatch) refuse(dir string, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.refused, dir)
	if err != nil && claim != nil {
		d.refused[dir] = volumes.Bound{Claim: claim.Name, PersistentVolume: pv.Name}
	}
	return err
}

// usable returns the kind of a persistent volume. It fails if the pod cannot use it as it is, or not on this node.
func (p *claimPlugin) usable(
	ctx context.Context, r volumes.Request, pv *v1.PersistentVolume, mode v1.PersistentVolumeMode,
) (Kind, error) {
	if err := errors.Join(checkName(pv.Name), checkMode(r.Pod, r.Volume.Name, mode)); err != nil {
		return nil, err
	}
	if err := p.checkNode(ctx, pv); err != nil {
		return nil, err
	}
	if kind := p.kindOf(pv); kind != nil {
		return kind, nil
	}
	return nil, unsupported(pv)
}

// kindOf returns the kind of a persistent volume; nil if there is none.
func (p *claimPlugin) kindOf(pv *v1.PersistentVolume) Kind {
	for _, kind := range p.cfg.Kinds {
		if kind.Supports(pv) {
			return kind
		}
	}
	return nil
}

// checkNode checks that a persistent volume may be used on this node.
func (p *claimPlugin) checkNode(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return nil
	}
	node, err := p.cfg.Node(ctx)
	if err != nil {
		return fmt.Errorf("persistent volume %q is for some nodes, and the labels of this one are not known: %w", pv.Name, err)
	}
	matches, err := corev1helpers.MatchNodeSelectorTerms(node, pv.Spec.NodeAffinity.Required)
	if err == nil && !matches {
		err = errors.New("no matching NodeSelectorTerms")
	}
	if err != nil {
		return fmt.Errorf("storage node affinity check failed: persistent volume %q: %w", pv.Name, err)
	}
	return nil
}

// checkName checks that the name of a persistent volume is one of a directory.
func checkName(name string) error {
	if name == "" || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("persistent volume %q: the name is invalid", name)
	}
	return nil
}

// checkMode checks that containers use a volume as its mode requires, with the kubelet's words.
func checkMode(pod *v1.Pod, name string, mode v1.PersistentVolumeMode) error {
	mounts, devices := volumes.Users(pod, name)
	if mounts && mode != v1.PersistentVolumeFilesystem {
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", name, mode)
	}
	if devices && mode != v1.PersistentVolumeBlock {
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", name, mode)
	}
	return nil
}
