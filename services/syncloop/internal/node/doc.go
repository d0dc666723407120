// Package node is the wing of node pressure. It has no code of its own.
//
// In: statistics of pods and of the node (stats), the eviction signals of nodestatus, the kernel's log (oom). Out:
// evicted pods (eviction), pods that end before the machine shuts down (shutdown), pods whose volumes find no place
// (volumelimits), events about processes that the kernel killed, and about damaged files
// (damagedfiles). Imports: every wing but api.
package node
