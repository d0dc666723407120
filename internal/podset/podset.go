// Package podset computes the changes of the pods of one source: it compares the present set of pods with the previous
// one, by UID, and returns the differences.
//
// It has no clock, no lock and no I/O, and never changes a pod that it is given. Only MergePart changes a set.
// configmux merges its sources with it; syncloop classifies received pods with Compare, so that both agree on what an
// update is.
package podset

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Op is the kind of a change of a desired pod. The values are in the order in which the changes of one merge are
// applied: removals come first, so that another pod can take the name, and status changes come last.
type Op uint8

// The operations, in the order in which one merge applies them.
const (
	// None: nothing relevant has changed.
	None Op = iota
	// Remove: the pod is not in its source any more.
	Remove
	// Add: the pod is new in its source.
	Add
	// Update: spec, labels, annotations, deletion time or grace period have changed.
	Update
	// Delete: as Update, and the pod is to be deleted with grace because its deletion timestamp is set.
	Delete
	// Restore: the pod comes from a checkpoint, and its source has not delivered any pods yet. Merge never returns it by
	// itself.
	Restore
	// Reconcile: only the status has changed.
	Reconcile
)

// String returns the kubelet's name of the operation.
func (o Op) String() string {
	switch o {
	case None:
		return "NONE"
	case Remove:
		return "REMOVE"
	case Add:
		return "ADD"
	case Update:
		return "UPDATE"
	case Delete:
		return "DELETE"
	case Restore:
		return "RESTORE"
	case Reconcile:
		return "RECONCILE"
	default:
		return "UNKNOWN"
	}
}

// Set holds the pods of a source by UID.
type Set map[types.UID]*v1.Pod

// Change is one difference between two sets.
type Change struct {
	// Op is never None.
	Op Op
	// Old is the previous version; nil for Add and Restore.
	Old *v1.Pod
	// New is the present version; nil for Remove.
	New *v1.Pod
}

// UID returns the UID of the changed pod.
func (c Change) UID() types.UID {
	if c.New != nil {
		return c.New.UID
	}
	return c.Old.UID
}

// Changes is the result of one merge.
type Changes struct {
	// Set is the present set, the input of the next merge. It is never nil.
	Set Set
	// List holds the changes, sorted by operation, and then by namespace, name and UID.
	List []Change
}

// Merge compares the present pods of a source with the previous ones. Pods must not have duplicate UIDs, see Filter; of
// duplicates, the first counts.
func Merge(old Set, pods []*v1.Pod) Changes {
	out := Changes{Set: make(Set, len(pods))}
	for _, pod := range pods {
		if _, repeated := out.Set[pod.UID]; repeated {
			continue
		}
		out.Set[pod.UID] = pod
		before := old[pod.UID]
		if op := Compare(before, pod); op != None {
			out.List = append(out.List, Change{Op: op, Old: before, New: pod})
		}
	}
	for uid, before := range old {
		if _, kept := out.Set[uid]; !kept {
			out.List = append(out.List, Change{Op: Remove, Old: before})
		}
	}
	slices.SortFunc(out.List, inOrder)
	return out
}

// MergePart compares some pods of a source with its set, and changes the set, because a copy for each changed pod would
// cost as much as there are pods. Pods that it does not name stay. If op is Remove the pods are removed, and only their
// UIDs matter; otherwise they are present. A new pod is an Add, or a Restore if op is Restore. Of duplicate UIDs, the
// last counts. It returns the changes in the order of Changes.List.
func MergePart(set Set, op Op, pods []*v1.Pod) []Change {
	old := make(Set, len(pods))
	for _, pod := range pods {
		if _, repeated := old[pod.UID]; !repeated {
			old[pod.UID] = set[pod.UID]
		}
		if op == Remove {
			delete(set, pod.UID)
		} else {
			set[pod.UID] = pod
		}
	}
	var changes []Change
	for uid, before := range old {
		change := Change{Old: before, New: set[uid]}
		change.Op = Compare(change.Old, change.New)
		if change.Op == Add && op == Restore {
			change.Op = Restore
		}
		if change.Op != None {
			changes = append(changes, change)
		}
	}
	slices.SortFunc(changes, inOrder)
	return changes
}

// Apply returns the set of a subscriber that held old and received the changes. It does not change old.
func Apply(old Set, changes []Change) Set {
	out := make(Set, len(old))
	maps.Copy(out, old)
	for _, c := range changes {
		if c.Op == Remove {
			delete(out, c.UID())
			continue
		}
		out[c.UID()] = c.New
	}
	return out
}

// inOrder compares by operation, then by namespace, name and UID.
func inOrder(a, b Change) int {
	p, q := a.New, b.New
	if p == nil {
		p = a.Old
	}
	if q == nil {
		q = b.Old
	}
	return cmp.Or(
		cmp.Compare(a.Op, b.Op),
		cmp.Compare(p.Namespace, q.Namespace),
		cmp.Compare(p.Name, q.Name),
		cmp.Compare(p.UID, q.UID),
	)
}
