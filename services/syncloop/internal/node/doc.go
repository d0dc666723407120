// Package node is the wing of what the machine runs short of. It has no code of its own.
//
// In: statistics of pods and of the node (stats), the eviction signals of nodestatus, the kernel's log (kernellog, oom).
// Out: pods that are evicted (eviction), pods that end before the machine does (shutdown), events of processes that the
// kernel killed.
// Imports: every wing but api.
package node
