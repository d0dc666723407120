// Package holders finds the containers in the runtime that hold what they were created with, such as devices and CPUs.
// It is for a start without a usable record of the allocations; the annotations of these containers have them.
package holders

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
)

// Holder is a container that holds something.
type Holder struct {
	Pod       types.UID
	Container *lifecyclev1.Container
}

// Of returns the containers that run, and after them, of each pod that goes on, the newest container of each name that
// does not run and may be started again. Newer ones come first: if two were created with the same device, the older one
// had given it back. An init container that has succeeded is not started again.
func Of(observed []*lifecyclev1.PodStatus, goesOn func(types.UID) bool) []Holder {
	var running, waiting []Holder
	for _, pod := range observed {
		uid, seen := types.UID(pod.GetUid()), map[string]bool{}
		for _, c := range pod.GetContainers() { // the newest first
			switch {
			case isRunning(c):
				running = append(running, Holder{Pod: uid, Container: c})
			case !seen[c.GetName()] && !hasSucceeded(c) && goesOn(uid):
				waiting = append(waiting, Holder{Pod: uid, Container: c})
			}
			seen[c.GetName()] = true
		}
	}
	slices.SortStableFunc(waiting, func(a, b Holder) int {
		return cmp.Compare(createdAt(b), createdAt(a))
	})
	return append(running, waiting...)
}

func isRunning(c *lifecyclev1.Container) bool {
	return c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
}

// hasSucceeded reports whether a container is an init container that has succeeded.
func hasSucceeded(c *lifecyclev1.Container) bool {
	return c.GetAnnotations()[podlabels.InitContainer] == "true" && c.GetExitCode() == 0 &&
		c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
}

func createdAt(h Holder) int64 { return h.Container.GetCreatedAt().AsTime().UnixNano() }
