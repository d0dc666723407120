// Package probe is the wing of liveness, readiness and startup probes. It has no code of its own.
//
// In: the containers that run, as the store names them.
// Out: results that say whether a container is ready, has started or must be restarted. prober decides when to call and what
// the answers mean; probecalls makes the calls.
// Imports: pod.
package probe
