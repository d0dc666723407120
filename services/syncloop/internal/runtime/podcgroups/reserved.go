package podcgroups

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Existing is a cgroup of daemons that others make, and that is limited to what is reserved for these.
type Existing struct {
	// Purpose is in the kubelet's words what the reservation is for: "system" or "kube".
	Purpose string
	// Name is its name as [ExistingName] returns it.
	Name string
	// Resources is what it is given: [resources.ForReservation].
	Resources resources.Resources
}

// ExistingName is the name of a cgroup that the configuration names: a path for cgroupfs; for systemd the path of a
// slice, of which the last part says all: /a-b.slice is /a.slice/a-b.slice.
func ExistingName(driver, name string) string {
	if driver != driverSystemd {
		return path.Clean("/" + name)
	}
	var out, unit strings.Builder
	for part := range strings.SplitSeq(strings.TrimSuffix(path.Base(name), slice), "-") {
		if unit.Len() > 0 {
			unit.WriteString("-")
		}
		unit.WriteString(part)
		out.WriteString("/" + unit.String() + slice)
	}
	return out.String()
}

// enforceReservations limits the cgroups of daemons. It tells of each that is limited, or is not, unless that is what
// was told before.
func (t *Tree) enforceReservations(ctx context.Context) error {
	var errs []error
	for _, existing := range t.cfg.Existing {
		err := t.limit(existing)
		state := enforcedYes
		if err != nil {
			state = enforcedNo
			errs = append(errs, err)
		}
		if t.told[existing.Name] == state {
			continue
		}
		t.told[existing.Name] = state
		if err != nil {
			title := strings.ToUpper(existing.Purpose[:1]) + existing.Purpose[1:]
			t.cfg.Events.NodeWarning(ctx, eventFailed, fmt.Sprintf("Failed to enforce %s Reserved Cgroup Limits on %q: %v", title, existing.Name, err))
		} else {
			t.cfg.Events.NodeNormal(ctx, eventEnforced, fmt.Sprintf("Updated limits on %s reserved cgroup %s", existing.Purpose, existing.Name))
		}
	}
	return errors.Join(errs...)
}

func (t *Tree) limit(existing Existing) error {
	if !t.cfg.Cgroups.Has(existing.Name) {
		return fmt.Errorf("%sReservedCgroup: there is no cgroup %s in every hierarchy: make it before the node starts, or leave %s-reserved out of enforceNodeAllocatable",
			existing.Purpose, existing.Name, existing.Purpose)
	}
	if err := t.cfg.Cgroups.Limit(existing.Name, existing.Resources); err != nil {
		return fmt.Errorf("%sReservedCgroup: %w", existing.Purpose, err)
	}
	return nil
}

// setClass gives a class of pods its resources. A memory limit that is less than what the class uses is not taken by
// the kernel; it is set to that use then, so that it does not grow.
func (t *Tree) setClass(class v1.PodQOSClass, r resources.Resources) error {
	name := t.cfg.Names.Class(class)
	err := t.set(name, r)
	if err == nil || r.Memory <= 0 {
		return err
	}
	usage, usageErr := t.cfg.Cgroups.Usage(name)
	if usageErr != nil || int64(usage.MemoryBytes) <= r.Memory { //nolint:gosec // bytes of memory fit
		return err
	}
	r.Memory = int64(usage.MemoryBytes) //nolint:gosec // as above
	return t.set(name, r)
}
