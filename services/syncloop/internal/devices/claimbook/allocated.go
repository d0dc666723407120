package claimbook

import (
	"errors"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FromAPI returns an allocated claim of the API server with its drivers, or why this node cannot use it, in the
// kubelet's words.
func FromAPI(claim *resourceapi.ResourceClaim) (Claim, error) {
	c := Claim{
		Name: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, UID: claim.UID,
		Drivers: map[string]Driver{},
	}
	if claim.Status.Allocation == nil {
		return Claim{}, errors.New("not allocated")
	}
	results := claim.Status.Allocation.Devices.Results
	for i := range results {
		c.Drivers[results[i].Driver] = Driver{}
	}
	for driver := range c.Drivers {
		if skipsAny(driver, results) {
			return Claim{}, errors.New("DRAOptionalNodeOperations feature gate is disabled on kubelet")
		}
	}
	return c, nil
}

// skipsAny reports whether an operation is to be skipped for every device of a driver.
func skipsAny(driver string, results []resourceapi.DeviceRequestAllocationResult) bool {
	devices, all, skips := 0, 0, map[resourceapi.SkipNodeOperation]int{}
	for i := range results {
		if results[i].Driver != driver {
			continue
		}
		devices++
		if slices.Contains(results[i].SkipNodeOperations, resourceapi.SkipNodeOperationAll) {
			all++
			continue
		}
		for _, operation := range results[i].SkipNodeOperations {
			skips[operation]++
		}
	}
	for _, n := range skips {
		if n+all == devices {
			return true
		}
	}
	return all == devices
}
