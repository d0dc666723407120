// Command pause is the process that holds a pod's namespaces open. It does nothing, takes up next to nothing, and ends at
// once when it is told to, so that stopping a sandbox never waits for it. As the first process of a pod that shares its
// process namespace it also reaps what the containers leave behind.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// pendingSignals is how many signals wait: one of each kind that is listened for.
const pendingSignals = 3

func main() {
	signals := make(chan os.Signal, pendingSignals)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// reap collects every child that has ended; one signal may stand for many.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
	}
}
