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

// Existing is a cgroup of daemons that others create, and that Quartet limits to its reservation.
type Existing struct {
	// Purpose is the kubelet's name of the reservation: "system" or "kube".
	Purpose string
	// Name is the name from [ExistingName].
	Name string
	// Resources is the limits from [resources.ForReservation].
	Resources resources.Resources
}

// ExistingName returns the name of a cgroup in the configuration: a path for cgroupfs; for systemd the path of a slice,
// whose last part contains all levels: /a-b.slice is /a.slice/a-b.slice.
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

// enforceReservations limits the cgroups of daemons. It records an event when a cgroup changes between limited and not
// limited.
func (t *Tree) enforceReservations(ctx context.Context) error {
	var errs []error
	for _, existing := range t.cfg.Existing {
		err := t.limit(existing)
		state := enforcedYes
		if err != nil {
			state = enforcedNo
			errs = append(errs, err)
		}
		if t.reported[existing.Name] == state {
			continue
		}
		t.reported[existing.Name] = state
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
		return fmt.Errorf("%sReservedCgroup: the cgroup %s does not exist in every hierarchy: create it before the node starts, or leave %s-reserved out of enforceNodeAllocatable",
			existing.Purpose, existing.Name, existing.Purpose)
	}
	if err := t.cfg.Cgroups.Limit(existing.Name, existing.Resources); err != nil {
		return fmt.Errorf("%sReservedCgroup: %w", existing.Purpose, err)
	}
	return nil
}

// setClass sets the resources of a QoS class. The kernel rejects a memory limit below the current usage; then the limit
// is set to the usage, so that the usage cannot grow.
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

// protect returns the settings that protect the memory that pods request, of the cgroups of all pods and of burstable
// pods. They are nil, so that the last ones stay, if requests are protected and the pods are not known.
func (t *Tree) protect(pods []*v1.Pod, known bool) (all, burstable map[string]string) {
	var requested resources.Requested
	if t.cfg.Limits.MemoryQoS.Tiered {
		if !known {
			return nil, nil
		}
		requested = resources.RequestedMemory(pods)
	}
	t.cfg.Metrics.protected(requested)
	return requested.Above()
}
