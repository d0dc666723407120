package persistentvolumes

import (
	"context"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/selinux"
)

// gidAnnotation is the annotation of a persistent volume with a group that may use it.
const gidAnnotation = "pv.beta.kubernetes.io/gid"

// groupOf returns the group of a persistent volume; nil if it names none. As in the kubelet, one that is no number is
// ignored.
func groupOf(pv *v1.PersistentVolume) *int64 {
	group, err := strconv.ParseInt(pv.Annotations[gidAnnotation], 10, 64)
	if err != nil {
		return nil
	}
	return &group
}

// Labeler is a Kind that can mount volumes with an SELinux label.
type Labeler interface {
	// MountsLabel reports whether a volume, of a claim or inline, can be mounted with a label.
	MountsLabel(ctx context.Context, r Request) (bool, error)
	// Present returns the label of a volume that is mounted at its directory already; false if there is none.
	Present(dir string) (label string, mounted bool)
	// Plugin is the name of the volume's plugin in the metrics of labels.
	Plugin(r Request) string
}

// label sets the SELinux label of a request for a directory of the volume manager, and returns the label that the
// volume would have if volumes of every access mode had one. A volume that is mounted keeps its label. It fails if
// other pods use the volume with another one.
func (d *dispatch) label(ctx context.Context, dir string, kind Kind, r *Request) (wanted string, err error) {
	if d.cfg.Labels == nil {
		return "", nil
	}
	v, plugin := selinux.Volume{Pod: r.Pod, Name: r.Volume.Name, PV: r.PV}, strings.ReplaceAll(kind.Name(), "~", "/")
	if labeler, ok := kind.(Labeler); ok {
		if present, mounted := labeler.Present(r.Dir); mounted {
			r.Label = present
			return present, nil
		}
		if v.Supported, err = labeler.MountsLabel(ctx, *r); err != nil {
			return "", err
		}
		plugin = labeler.Plugin(*r)
	}
	r.Label, wanted, err = d.cfg.Labels.Label(v)
	if err != nil || r.PV == nil {
		return "", err
	}
	first, theirs := d.usersOf(dir, r.PV.Name)
	switch {
	case !first:
		return wanted, d.cfg.Labels.Conflict(v, plugin, theirs, wanted)
	case wanted != "" && !d.isKnown(dir):
		d.cfg.Labels.Admitted(v, plugin)
	}
	return wanted, nil
}

// usersOf reports whether no other request of the volume manager than that for a directory has a persistent volume
// mounted, and otherwise returns the label that it has.
func (d *dispatch) usersOf(dir, pv string) (none bool, wanted string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for other, p := range d.places {
		if other != dir && p.bound.PersistentVolume == pv && p.path != "" {
			return false, p.wanted
		}
	}
	return true, ""
}

// isKnown reports whether the volume of a directory has been requested before.
func (d *dispatch) isKnown(dir string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, known := d.places[dir]
	return known
}

// keepsLabel reports whether the runtime must not give a mounted volume the pod's SELinux label. As in the kubelet, it
// does not for read-only volumes, and for kinds that cannot have labels for each file.
func keepsLabel(kind Kind, r Request, path string) (bool, error) {
	if keeper, ok := kind.(LabelKeeper); ok {
		return keeper.KeepsLabel(r, path)
	}
	return r.ReadOnly, nil
}

// LabelKeeper is a Kind whose volumes keep their SELinux labels in cases of their own. Those of other kinds keep them
// when they are read-only.
type LabelKeeper interface {
	// KeepsLabel reports whether the runtime must not give a volume that is mounted at a path the pod's label.
	KeepsLabel(r Request, path string) (bool, error)
}

// KeepsLabel implements LabelKeeper: the server has the labels, if any.
func (*NFS) KeepsLabel(Request, string) (bool, error) { return true, nil }

// KeepsLabel implements LabelKeeper: the path is the node's.
func (HostPath) KeepsLabel(Request, string) (bool, error) { return true, nil }
