// Package probe is the wing for liveness, readiness and startup probes. It has no code of its own.
//
// In: the running containers, from the store. Out: results that decide whether a container is ready, has started or
// must be restarted. prober decides when to call and evaluates the answers; probecalls makes the calls. Imports: pod.
package probe
