// Package pod is the wing for the desired and observed state of a pod. It has no code of its own; its packages are
// pure: they have no clock, no network and no disk.
//
// In: the pod of a source, its state as observed by pleg (podview), the facts of the node. Out: the next actions
// (decide), admission (admission), the pod's status (podstatus), the CRI configuration of its containers
// (containerspec), the limits of its cgroups (resources). Imports: no other wing.
package pod
