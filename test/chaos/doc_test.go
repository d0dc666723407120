// Package chaos changes what is wanted of a node at random, kills the node's processes at random, and at random kills, stops and
// removes containers and sandboxes behind its back. It drives the built binaries from outside, as a user does, and looks at the
// runtime through the CRI.
//
// What is checked:
//
//   - At the end the node comes to rest with exactly what is wanted, and with nothing left over.
//   - At no time do two instances of one container run.
//   - Every container that the runtime was seen to start has exactly one line in syncloop's log, written before the runtime was
//     asked to start it, so that none is lost with a syncloop that is killed. The line and the container itself name the same cause
//     and the same restart count.
//   - The cause is true. A first start has none before it in the pod; an exit code is the one that the container before it had;
//     a changed spec, a replaced sandbox, a container that is gone are what the runtime has shown.
//   - The cause has a cause: what ended was killed, stopped, removed or changed here, ends by itself, or was being started when its
//     runtime was killed. So nothing restarts that nobody has touched; some pods are never touched, and stay as they are.
//
// The runtime is looked at ten times a second. What comes and goes in between is not judged, and counted; too many of those fail
// the test. See inquiry_test.go for what the check finds.
//
// A run lasts three minutes. It can be repeated with QUARTET_CHAOS_SEED, as far as timing allows, and be made longer with
// QUARTET_CHAOS_DURATION:
//
//	QUARTET_CHAOS_DURATION=30m go test -count 1 -timeout 40m -v ./test/chaos
package chaos
