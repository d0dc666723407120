package containergc

import (
	"fmt"
	"slices"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// Item is an unneeded container or sandbox in the runtime.
type Item struct {
	// Pod is the pod's UID, Namespace and Name are its namespace and name.
	Pod, Namespace, Name string
	// Container is the container; nil for a sandbox.
	Container *lifecyclev1.Container
	// Sandbox is the runtime's ID of the sandbox; empty for a container.
	Sandbox string
}

// id returns the runtime's ID of the item.
func (i Item) id() string {
	if i.Container != nil {
		return i.Container.GetId()
	}
	return i.Sandbox
}

// description returns a readable description of the item.
func (i Item) description() string {
	if i.Container != nil {
		return fmt.Sprintf("container %s of pod %s/%s", i.Container.GetName(), i.Namespace, i.Name)
	}
	return fmt.Sprintf("a sandbox of pod %s/%s", i.Namespace, i.Name)
}

// Of returns the unneeded items of a pod, containers before sandboxes. Unneeded are: the ended containers of each name
// except the newest keep, but at least one, because it holds the restart count, the last state and the back-off;
// containers that were never started, if there is a newer one of the name; and sandboxes that are not ready, not the
// newest, and contain no needed container.
//
// An unneeded item never becomes needed again, so an outdated observation does no harm.
func Of(pod *lifecyclev1.PodStatus, keep int) []Item {
	var items []Item
	kept, seen, inUse := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, c := range pod.GetContainers() { // newest first
		name := c.GetName()
		created := c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
		switch {
		case created && seen[name], podview.Exited(c) && kept[name] >= max(keep, 1):
			items = append(items, Item{Pod: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName(), Container: c})
			continue
		case podview.Exited(c):
			kept[name]++
		}
		seen[name] = true
		inUse[c.GetSandboxId()] = true
	}
	return append(items, sandboxesOf(pod, inUse)...)
}

// sandboxesOf returns the sandboxes of a pod that are not ready, not the newest, and not in use.
func sandboxesOf(pod *lifecyclev1.PodStatus, inUse map[string]bool) []Item {
	var items []Item
	for i, s := range pod.GetSandboxes() { // newest first: it holds the attempt and the pod's last addresses
		if i > 0 && !podview.Ready(s) && !inUse[s.GetId()] {
			items = append(items, Item{
				Pod: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName(), Sandbox: s.GetId(),
			})
		}
	}
	return items
}

// AllOf is Of for a pod that has terminated: it also returns all ended containers and those that were never started.
// The newest sandbox stays: it needs almost no space, and it records the pod's start and addresses. The oldest
// container is the first, so that the newest one of a name is never removed before an older one.
func AllOf(pod *lifecyclev1.PodStatus) []Item {
	var items []Item
	inUse := map[string]bool{}
	for _, c := range slices.Backward(pod.GetContainers()) {
		if podview.Exited(c) || c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED {
			items = append(items, Item{Pod: pod.GetUid(), Namespace: pod.GetNamespace(), Name: pod.GetName(), Container: c})
			continue
		}
		inUse[c.GetSandboxId()] = true
	}
	return append(items, sandboxesOf(pod, inUse)...)
}

// hasEnded reports whether a pod has an ended container.
func hasEnded(pod *lifecyclev1.PodStatus) bool {
	return slices.ContainsFunc(pod.GetContainers(), podview.Exited)
}
