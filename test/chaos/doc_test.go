// Package chaos changes what is wanted of a node at random, kills the node's processes at random, and at random kills, stops and
// removes containers and sandboxes behind its back. It drives the built binaries from outside, as a user does, and looks at the
// runtime through the CRI.
//
// What is checked:
//
//   - At the end the node comes to rest with exactly what is wanted, and with nothing left over.
//   - At no time do two instances of one container run, by looks at the runtime and by the runtime's log.
//   - Every container whose start the runtime was asked for has exactly one line in syncloop's log, written before that, so that none
//     is lost with a syncloop that is killed. The line and the container itself name the same cause and the same restart count.
//   - The cause is true. A first start has none before it in the pod; an exit code is the one that the container before it had;
//     a changed spec, a replaced sandbox, a container that is gone are what the runtime has shown.
//   - The cause has a cause: what ended was killed, stopped, removed or changed here, ends by itself, or was being started when its
//     runtime was killed. So nothing restarts that nobody has touched; some pods are never touched, and stay as they are.
//
// The runtime is looked at ten times a second, and all that it was asked for is in its own log, also what comes and goes between two
// looks: which containers were made, started and removed, and how each has ended. Every start is judged; a look adds what a container
// says of itself. What happened while the runtime was dead nobody has logged: such a restart is counted as of unknown cause, and more
// than a few of them fail the test. See inquiry_test.go for what the check finds.
//
// Not done to the node is a step of the clock: nobody can set the clock of single processes (a time namespace has no clock of the
// day, and a library that is loaded before a static Go program changes nothing), and the machine's is everybody's. It is tried on
// fake clocks where a time of the day comes from elsewhere than this process: crash back-off in services/syncloop/internal/pod/decide, first
// calls in probes, the start of a pod in metrics, the order of containers, their ends and events in services/pleg/internal/relist. When
// work is due, pulls are tried again and images are old are differences of times that one process has read, which a step does not
// change (worker has a test of that); deadlines of ends, which outlive a process, are by the boot clock (endings).
//
// A run lasts three minutes. It can be repeated with QUARTET_CHAOS_SEED, as far as timing allows, and be made longer with
// QUARTET_CHAOS_DURATION:
//
//	QUARTET_CHAOS_DURATION=30m go test -count 1 -timeout 40m -v ./test/chaos
package chaos
