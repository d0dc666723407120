package csinode

import (
	"context"
	"fmt"
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/quartet-node/quartet/services/nodestatus/internal/inventory"
)

// publishHealth writes what drivers report of their storage into the status of the CSINode, and reports whether it has
// written it. A conflict is an error, because the next comparison follows soon.
func (k *Keeper) publishHealth(ctx context.Context, drivers inventory.Drivers) (wrote bool, err error) {
	reports, err := reportsOf(drivers)
	if err != nil || len(reports) == 0 {
		return false, err
	}
	there, err := k.api.get(ctx)
	if err != nil {
		return false, err
	}
	want := nextHealth(there, reports)
	if want == nil {
		return false, nil
	}
	if err := k.api.updateStatus(ctx, want); err != nil {
		return true, &healthError{err}
	}
	return true, nil
}

// healthError is a failure to write the health of storage.
type healthError struct{ err error }

// Error implements error, in the kubelet's words.
func (e *healthError) Error() string { return "error updating CSINode status: " + e.err.Error() }

// Unwrap returns the error of the API server.
func (e *healthError) Unwrap() error { return e.err }

// reportsOf returns the reports of the drivers that have one, sorted by their names.
func reportsOf(drivers inventory.Drivers) (reports []storagev1.StorageHealth, err error) {
	for _, name := range slices.Sorted(maps.Keys(drivers.Known)) {
		data := drivers.Known[name].GetStorageHealth()
		if len(data) == 0 {
			continue
		}
		var report storagev1.StorageHealth
		if err := report.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("the health of the storage of the CSI driver %s: %w", name, err)
		}
		reports = append(reports, report)
	}
	return reports, nil
}

// nextHealth returns a CSINode with the reports of drivers in its status; nil if nothing has changed. As in the
// kubelet, a report is written when the set of its statuses, reasons and modes differs, a driver without conditions has
// no entry, and entries of other drivers stay.
func nextHealth(there *storagev1.CSINode, reports []storagev1.StorageHealth) *storagev1.CSINode {
	out, changed := there.DeepCopy(), false
	for _, report := range reports {
		isIt := func(h storagev1.StorageHealth) bool { return h.Name == report.Name }
		var before []storagev1.StorageHealthCondition
		if at := slices.IndexFunc(out.Status.StorageHealth, isIt); at >= 0 {
			before = out.Status.StorageHealth[at].HealthConditions
		}
		if maps.Equal(identitiesOf(before), identitiesOf(report.HealthConditions)) {
			continue
		}
		changed = true
		out.Status.StorageHealth = slices.DeleteFunc(out.Status.StorageHealth, isIt)
		if len(report.HealthConditions) > 0 {
			out.Status.StorageHealth = append(out.Status.StorageHealth, report)
		}
	}
	if !changed {
		return nil
	}
	return out
}

// conditionIdentity is what distinguishes a condition from others of its driver.
type conditionIdentity struct{ status, reason, access, volume string }

// identitiesOf returns the set of the identities of conditions.
func identitiesOf(conditions []storagev1.StorageHealthCondition) map[conditionIdentity]bool {
	all := map[conditionIdentity]bool{}
	for i := range conditions {
		c := &conditions[i]
		one := conditionIdentity{status: string(c.Status), reason: c.Reason}
		if c.AccessMode != nil {
			one.access = string(*c.AccessMode)
		}
		if c.VolumeMode != nil {
			one.volume = string(*c.VolumeMode)
		}
		all[one] = true
	}
	return all
}
