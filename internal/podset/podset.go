// Package podset decides what has become of the pods of one source: it compares the full set that a source gives with
// the set that it gave before, by UID, and names the difference.
//
// It is pure: it has no clock, no lock and no I/O, and never changes a pod that it is given. configmux merges its
// sources with it; syncloop classifies with Compare what it receives, so that both mean the same by an update.
package podset

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Op says what has become of a desired pod. The values are in the order in which the changes of one merge are made:
// a pod makes room before another takes its name, and what only informs comes last.
type Op uint8

// The operations, in the order in which one merge makes them.
const (
	// None: nothing that matters has changed.
	None Op = iota
	// Remove: the pod is gone from its source.
	Remove
	// Add: the pod is new in its source.
	Add
	// Update: spec, labels, annotations, deletion time or grace period have changed.
	Update
	// Delete: as Update, and the pod is to be deleted with grace because its deletion timestamp is set.
	Delete
	// Restore: the pod comes from a checkpoint; its source has not spoken yet. A merge never yields it by itself.
	Restore
	// Reconcile: only the status has changed.
	Reconcile
)

// String returns the name that operators know from the kubelet.
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

// Set holds the pods that a source gave last, by UID.
type Set map[types.UID]*v1.Pod

// Change is one difference between two sets.
type Change struct {
	// Op is never None.
	Op Op
	// Old is what the source gave before; nil for Add and Restore.
	Old *v1.Pod
	// New is what it gives now; nil for Remove.
	New *v1.Pod
}

// UID returns the UID of the pod that the change is about.
func (c Change) UID() types.UID {
	if c.New != nil {
		return c.New.UID
	}
	return c.Old.UID
}

// Changes is the outcome of one merge.
type Changes struct {
	// Set is what the source has given now, to be merged with next time. Never nil.
	Set Set
	// List has the changes in the order of their operations, and in the order of namespace, name and UID within one.
	List []Change
}

// Merge compares what a source gives now with what it gave before. The pods given must be free of repeated UIDs, see
// Filter; of pods that share one, the first counts.
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

// MergePart compares some pods of a source with what it gave before; those that it does not name stay. With Remove as the
// operation they are gone, and only their UIDs matter; with any other they are there now. One that was not there before is
// an Add, or, when it is out of a checkpoint and the operation so Restore, a Restore. Of pods that share a UID the last counts.
func MergePart(old Set, op Op, pods []*v1.Pod) Changes {
	out := Changes{Set: make(Set, len(old)+len(pods))}
	maps.Copy(out.Set, old)
	for _, pod := range pods {
		if op == Remove {
			delete(out.Set, pod.UID)
		} else {
			out.Set[pod.UID] = pod
		}
	}
	compared := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		if compared[pod.UID] {
			continue
		}
		compared[pod.UID] = true
		change := Change{Old: old[pod.UID], New: out.Set[pod.UID]}
		change.Op = Compare(change.Old, change.New)
		if change.Op == Add && op == Restore {
			change.Op = Restore
		}
		if change.Op != None {
			out.List = append(out.List, change)
		}
	}
	slices.SortFunc(out.List, inOrder)
	return out
}

// Apply returns the set that a subscriber holds who held old and has seen the changes. Old is left as it was.
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

// inOrder sorts by operation, then by namespace, name and UID.
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
