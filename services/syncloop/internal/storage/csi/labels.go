package csi

import (
	"context"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
)

// MountsLabel implements persistentvolumes.Labeler: the CSIDriver says it.
func (p *Plugin) MountsLabel(ctx context.Context, r persistentvolumes.Request) (bool, error) {
	object, err := p.cfg.Cluster.Driver(ctx, driverOf(r))
	if err != nil || object == nil {
		return false, err
	}
	return object.Spec.SELinuxMount != nil && *object.Spec.SELinuxMount, nil
}

// Present implements persistentvolumes.Labeler. What an earlier process or a kubelet has mounted is present, too.
func (p *Plugin) Present(dir string) (label string, mounted bool) {
	at := placeOf(dir)
	r, known := p.books.user(at)
	if !known {
		return "", false
	}
	is, err := p.mounted(p.books.target(at))
	return r.label, err == nil && (is || r.holds(p.cfg.Boot, is))
}

// Plugin implements persistentvolumes.Labeler.
func (p *Plugin) Plugin(r persistentvolumes.Request) string { return pluginName + "/" + driverOf(r) }

// KeepsLabel implements persistentvolumes.LabelKeeper: a volume does that is read-only, is mounted with a label, or
// whose file system has no labels.
func (p *Plugin) KeepsLabel(r persistentvolumes.Request, path string) (bool, error) {
	readOnly := r.ReadOnly || r.PV == nil && r.Volume.CSI.ReadOnly != nil && *r.Volume.CSI.ReadOnly
	if readOnly || r.Label != "" || r.Block || p.cfg.SELinux == nil || !p.cfg.SELinux.Enabled() {
		return readOnly || r.Label != "", nil
	}
	has, err := p.cfg.SELinux.HasLabels(path)
	return !has, err
}

// driverOf returns the driver of a volume.
func driverOf(r persistentvolumes.Request) string {
	if r.PV != nil {
		return r.PV.Spec.CSI.Driver
	}
	return r.Volume.CSI.Driver
}
