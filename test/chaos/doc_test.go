// Package chaos changes what is wanted of a node at random while it kills the node's processes at random, and then checks
// that the node comes to rest with exactly what is wanted. It drives the built binaries from outside, as a user does, and
// looks at the runtime through the CRI.
//
// A run can be repeated with QUARTET_CHAOS_SEED, as far as timing allows, and be made longer with QUARTET_CHAOS_DURATION.
package chaos
