// Package processors limits how many processors each process of a node uses at once.
//
// Go runs goroutines on as many processors as the machine has. A process that has little to do and is woken often pays
// for them: each wake-up starts threads that look for work and find none, and a thread of Go's own that looks after the
// others every 20 µs while they run. The start of a pod wakes each of the five processes of a node dozens of times. On
// two processors, with one for each process, the processes of a node take a quarter less processor time for a hundred
// starts (docs/performance.md).
package processors

import (
	"os"
	"runtime"
	"strconv"
)

const (
	// share is the part of the machine's processors that a process uses: there are five processes and a runtime.
	share = 4
	// most is enough for the work of a node: the container runtime does most of it.
	most = 4
)

// Variable is Go's environment variable with the number of processors.
const Variable = "GOMAXPROCS"

// Limit limits this process to a quarter of the processors that it may use, at least one and at most four. A second
// call takes a quarter of those. If the environment variable GOMAXPROCS is set, it does nothing: the operator has
// decided.
func Limit() {
	if os.Getenv(Variable) == "" {
		runtime.GOMAXPROCS(of(runtime.GOMAXPROCS(0)))
	}
}

// ForChild returns the value of Variable for a child of this process: a process has as many as its parent.
func ForChild() string { return strconv.Itoa(runtime.GOMAXPROCS(0)) }

// All undoes Limit, for a process that serves many nodes.
func All() { runtime.SetDefaultGOMAXPROCS() }

// of returns the number of processors for a process that may use a number of them.
func of(available int) int { return min(max(1, available/share), most) }
