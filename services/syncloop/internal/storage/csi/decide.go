package csi

import "slices"

// mustStage reports whether the driver must be asked to stage a volume, from its record (nil if there is none), the
// present boot, and whether something is mounted at the path.
func mustStage(r *record, boot string, mounted bool) bool {
	return r == nil || !r.holds(boot, mounted)
}

// mustPublish reports whether the driver must be asked to publish a pod's volume. A driver may require it each time.
func mustPublish(r *record, boot string, mounted, again bool) bool {
	return again || r == nil || !r.holds(boot, mounted)
}

// holds reports whether what was done still is.
func (r *record) holds(boot string, mounted bool) bool {
	return r.phase == done && r.boot == boot && (mounted || !r.mounted)
}

// mustUnpublish reports whether the driver must be asked to unpublish a pod's volume.
func mustUnpublish(r record) bool { return r.phase != begun }

// isLabeledOtherwise reports whether a volume is staged, or published for another pod of the node, or may be, with
// another SELinux label than it is wanted with.
func isLabeledOtherwise(staged *record, users []record, v identity, me place, label string) bool {
	if staged != nil && staged.label != label {
		return true
	}
	return slices.ContainsFunc(users, func(u record) bool {
		return u.identity == v && u.place != me && u.phase != begun && !u.inline && u.label != label
	})
}

// takenByOther reports whether another pod of the node has a volume published, or may have.
func takenByOther(users []record, v identity, me place) bool {
	for _, u := range users {
		if u.identity == v && u.pod != me.pod && u.phase != begun && !u.inline {
			return true
		}
	}
	return false
}

// idle returns the staged volumes that no pod of the node uses or is about to use: the driver must unstage them. A pod
// that waits for the volume with another SELinux label does not use it as it is staged.
func idle(staged, users []record) []record {
	type use struct {
		identity
		label string
	}
	published, wanted := map[identity]bool{}, map[use]bool{}
	for _, u := range users {
		switch {
		case u.inline:
		case u.phase == begun:
			wanted[use{u.identity, u.label}] = true
		default:
			published[u.identity] = true
		}
	}
	var unused []record
	for _, s := range staged {
		if !published[s.identity] && !wanted[use{s.identity, s.label}] {
			unused = append(unused, s)
		}
	}
	return unused
}
