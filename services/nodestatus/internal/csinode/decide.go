package csinode

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/nodestatus/internal/inventory"
)

const (
	// annotationNodeIDs is the annotation of the Node with a JSON map of the names of drivers to their IDs of the node.
	annotationNodeIDs = "csi.volume.kubernetes.io/nodeid"
	// patience is how long a driver that is not registered again after a restart of syncloop, or of the machine, stays in
	// the CSINode. It is longer than syncloop's longest pause between two attempts to register a driver.
	patience = 5 * time.Minute
)

// migrated are the volume plugins of Kubernetes whose volumes are those of CSI drivers, in the kubelet's order. Since
// Kubernetes 1.31 they cannot be used otherwise.
var migrated = strings.Join([]string{
	"kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/azure-file", "kubernetes.io/cinder",
	"kubernetes.io/gce-pd", "kubernetes.io/portworx-volume", "kubernetes.io/vsphere-volume",
}, ",")

// verdict is what becomes of a driver in the cluster.
type verdict int

// The verdicts.
const (
	// publish: it is registered.
	publish verdict = iota
	// remove: it was deregistered, or is not registered for a long time.
	remove
	// keep: it may be registered soon, and stays as it is.
	keep
)

// accepted are the drivers, of which refused ones are not published. Those are neither in Known nor removed.
type accepted struct {
	inventory.Drivers
	refused map[string]string
}

// judge returns the verdict about a driver.
func judge(name string, drivers accepted, now time.Time) verdict {
	switch {
	case drivers.refused[name] != "":
		return keep
	case drivers.Known[name] != nil:
		return publish
	case drivers.Gone[name]:
		return remove
	case drivers.Since.IsZero() || now.Sub(drivers.Since) < patience:
		return keep
	}
	return remove
}

// ownerOf returns the reference to the Node as the owner of its CSINode.
func ownerOf(node *v1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

// isOwned reports whether a CSINode belongs to a Node, and not to an earlier one of the same name.
func isOwned(there *storagev1.CSINode, node *v1.Node) bool {
	return slices.ContainsFunc(there.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.Kind == "Node" && owner.Name == node.Name && owner.UID == types.UID(node.UID)
	})
}

// fresh returns the CSINode of a Node without drivers.
func fresh(node *v1.Node) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, OwnerReferences: []metav1.OwnerReference{ownerOf(node)},
			Annotations: map[string]string{v1.MigratedPluginsAnnotationKey: migrated},
		},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{}},
	}
}

// next returns the next version of a CSINode; nil if nothing is left to do. An entry of a driver cannot be changed,
// except for its allocatable count: it is removed first, and added by the version after that. Strict does the same for
// the count, for API servers before Kubernetes 1.33.
func next(there *storagev1.CSINode, drivers accepted, now time.Time, strict bool) *storagev1.CSINode {
	out := there.DeepCopy()
	changed := false
	if out.Annotations[v1.MigratedPluginsAnnotationKey] != migrated {
		if out.Annotations == nil {
			out.Annotations = map[string]string{}
		}
		out.Annotations[v1.MigratedPluginsAnnotationKey] = migrated
		changed = true
	}
	out.Spec.Drivers = []storagev1.CSINodeDriver{}
	named := map[string]bool{}
	for _, entry := range there.Spec.Drivers {
		named[entry.Name] = true
		switch judge(entry.Name, drivers, now) {
		case keep:
			out.Spec.Drivers = append(out.Spec.Drivers, entry)
		case remove:
			changed = true
		case publish:
			want := entryOf(drivers.Known[entry.Name])
			same, sameCount := compare(entry, want)
			if same && (sameCount || !strict) { // also with its keys in their order, which cannot be changed
				entry.Allocatable = want.Allocatable
				out.Spec.Drivers = append(out.Spec.Drivers, entry)
			}
			changed = changed || !same || !sameCount
		}
	}
	for _, name := range slices.Sorted(maps.Keys(drivers.Known)) {
		if !named[name] {
			out.Spec.Drivers = append(out.Spec.Drivers, entryOf(drivers.Known[name]))
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return out
}

// entryOf returns the entry of a driver.
func entryOf(driver *enginev1.CSIDriver) storagev1.CSINodeDriver {
	entry := storagev1.CSINodeDriver{
		Name: driver.GetName(), NodeID: driver.GetNodeId(), TopologyKeys: slices.Sorted(maps.Keys(driver.GetTopology())),
	}
	if driver.AllocatableVolumes != nil {
		count := int32(min(driver.GetAllocatableVolumes(), math.MaxInt32)) //nolint:gosec // it is limited
		entry.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	}
	return entry
}

// compare reports whether two entries of a driver are the same without and in their allocatable count.
func compare(a, b storagev1.CSINodeDriver) (same, sameCount bool) {
	same = a.NodeID == b.NodeID && slices.Equal(slices.Sorted(slices.Values(a.TopologyKeys)), b.TopologyKeys)
	return same, ptr.Equal(countOf(a), countOf(b))
}

func countOf(entry storagev1.CSINodeDriver) *int32 {
	if entry.Allocatable == nil {
		return nil
	}
	return entry.Allocatable.Count
}

// metadata are changes of a Node's metadata. An empty one changes nothing.
type metadata struct {
	// labels are labels to add.
	labels map[string]string
	// annotation is the new value of annotationNodeIDs; nil if it does not change, empty to remove it.
	annotation *string
}

func (m metadata) empty() bool { return len(m.labels) == 0 && m.annotation == nil }

// accept refuses the drivers whose topology contradicts a label of the Node or a driver before, by name, as in the
// kubelet.
func accept(node *v1.Node, drivers inventory.Drivers) accepted {
	out := accepted{Drivers: drivers, refused: map[string]string{}}
	out.Known = map[string]*enginev1.CSIDriver{}
	labels := maps.Clone(node.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for _, name := range slices.Sorted(maps.Keys(drivers.Known)) {
		driver := drivers.Known[name]
		if why := collision(driver.GetTopology(), labels); why != "" {
			out.refused[name] = why
			continue
		}
		out.Known[name] = driver
		maps.Copy(labels, driver.GetTopology())
	}
	return out
}

// collision returns the contradiction between a topology and labels in the kubelet's words; empty if there is none.
func collision(topology, labels map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(topology)) {
		if is, there := labels[key]; there && is != topology[key] {
			return fmt.Sprintf("detected topology value collision: driver reported %q:%q but existing label is %q:%q",
				key, topology[key], key, is)
		}
	}
	return ""
}

// metadataOf returns the changes of a Node for accepted drivers. With removing, the IDs of removed drivers are removed.
// Labels are never removed, as in the kubelet, because volumes may be bound to them.
func metadataOf(node *v1.Node, drivers accepted, now time.Time, removing bool) metadata {
	out := metadata{labels: map[string]string{}}
	text := node.Annotations[annotationNodeIDs]
	var ids map[string]string
	if err := json.Unmarshal([]byte(text), &ids); err != nil || ids == nil {
		ids = map[string]string{} // nobody can read it, so it is written again
	}
	for name, driver := range drivers.Known {
		ids[name] = driver.GetNodeId()
		for key, value := range driver.GetTopology() {
			if is, there := node.Labels[key]; !there || is != value {
				out.labels[key] = value
			}
		}
	}
	for name := range ids {
		if removing && judge(name, drivers, now) == remove {
			delete(ids, name)
		}
	}
	want := ""
	if len(ids) > 0 {
		data, err := json.Marshal(ids)
		if err != nil {
			return out // a map of texts can be encoded
		}
		want = string(data)
	}
	if want != text {
		out.annotation = &want
	}
	return out
}
