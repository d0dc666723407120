// Package chaos changes the desired state of a node at random, kills and suspends the node's processes at random,
// damages its files, fills the disks of its records, and at random kills, stops and removes containers and sandboxes
// behind its back. It drives the built binaries from outside, as a user does, and inspects the runtime through the CRI.
//
// It checks:
//
//   - At the end the node settles in exactly the desired state, with nothing left over.
//   - Two instances of one container never run at the same time, by inspection of the runtime and by the runtime's log.
//   - Every container that the runtime was asked to start has exactly one line in syncloop's log, written before the
//     request, so that no line is lost when syncloop is killed. The line and the container itself have the same cause
//     and restart count.
//   - The cause is true. A first start has no predecessor in the pod; an exit code is that of the previous container; a
//     changed spec, a replaced sandbox and a missing container agree with the state of the runtime.
//   - The cause has a cause: the container that ended was killed, stopped, removed or changed by the test, ends by
//     itself, was being started when its runtime was killed, or its pod came back in another life. So an untouched pod
//     never restarts; some pods are never touched, and stay as they are.
//   - `quartet record` has recorded all that pleg, syncloop and nodestatus decide by: each of them is replayed against the
//     recording of the others, and decides the same.
//   - The only device of a device plugin stays that of the pod that has it, although the checkpoint is damaged.
//
// The test inspects the runtime ten times a second. The runtime's own log has all requests, including containers that
// exist only between two inspections: creations, starts, removals, and how each container ended. Every start is
// checked; an inspection adds the container's own annotations. Nothing logs the events while the runtime is dead: such
// a restart counts as one of unknown cause, and more than a few of them fail the test. See inquiry_test.go for the
// errors that the check finds.
//
// The test does not step the clock: the clock of single processes cannot be set (a time namespace has no wall clock,
// and a preloaded library has no effect on a static Go program), and the machine's clock is shared. Tests with fake
// clocks cover the wall-clock times that come from outside a process: crash back-off in
// services/syncloop/internal/pod/decide, first calls in probes, the start of a pod in metrics, the order of containers,
// their ends and events in services/pleg/internal/relist. The times of due work, pull retries and the age of images are
// differences of times that one process has read, which a step does not change (worker has a test of that); the
// deadlines of terminations, which outlive a process, use the boot clock (endings).
//
// A run lasts three minutes. It can be repeated with QUARTET_CHAOS_SEED, as far as timing allows, and be made longer
// with QUARTET_CHAOS_DURATION, for example for a night:
//
//	QUARTET_CHAOS_DURATION=8h go test -count 1 -timeout 9h -v ./test/chaos
package chaos
