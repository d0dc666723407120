// Package prober says which containers are ready, have started, and are to be restarted, by asking them again and again as their
// probes say. It stands beside the workers: the store tells it which containers run ([Manager.Observe]), package probecalls makes
// the calls, and each result that changes goes to the loop ([Manager.Changes]), which has the pod's status computed and its worker
// look. What is to be killed for it package decide says.
//
// When a probe is run and what its answers come to is decided without a clock by machine, in machine.go.
//
// # One heap, and a goroutine for each running call
//
// All that waits is in one heap with one timer; only a call that runs has a goroutine, and a probe has one call at a time. So a
// call that hangs delays nobody else, which a fixed number of workers would let it do, and a thousand probes that wait cost a
// thousand small structs and no stacks. There are never more goroutines than probes.
//
// # What a restart of this process finds
//
// A [Book] keeps the results. A result is on disk before anybody is told of it: whoever was told that a container is ready, or is
// not, is told the same by the next process. The other order would show a flap, the old result again for a moment. What is lost is
// how far a row of answers had come. The first calls after a restart are spread, a container that has just started is asked at once.
package prober
