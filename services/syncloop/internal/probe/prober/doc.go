// Package prober decides which containers are ready, have started, and must be restarted, by calling their probes
// periodically. It runs beside the workers: the store passes it the running containers ([Manager.Observe]), package
// probecalls makes the calls, and each changed result goes to the loop ([Manager.Changes]), which updates the pod's
// status and wakes its worker. Package decide decides what to kill.
//
// machine.go decides, without a clock, when a probe is called and what the result is.
//
// # One heap, and a goroutine for each running call
//
// All waiting probes are in one heap with one timer; only a running call has a goroutine, and a probe has one call at a
// time. So a hanging call delays no other, as it would with a fixed number of workers, and a thousand waiting probes
// cost a thousand small structs and no stacks. There are never more goroutines than probes.
//
// # What a restart of this process finds
//
// A [Book] stores the results. A result is on disk before it is published: the next process starts with the same
// result. The other order would show the old result again for a moment. Only the number of consecutive results is lost.
// The first calls after a restart are spread, but a container that has just started is called at once.
package prober
