// Package pod is the wing that knows what a pod is and should be. It has no code of its own; its packages are pure: they have
// no clock, no network and no disk.
//
// In: the pod of a source, what pleg has observed of it (podview), the facts of the node.
// Out: what to do next (decide), whether it is let in (admission), its status (podstatus), the CRI configuration of its
// containers (containerspec), the limits of its cgroups (resources).
// Imports: no other wing.
package pod
