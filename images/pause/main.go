// Command pause is the process that holds a pod's namespaces open. It waits, takes very little memory, and ends at once
// on a signal, so that stopping a sandbox never waits for it. As the first process of a pod with a shared process
// namespace it also reaps the orphans of the containers.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// pendingSignals is the number of buffered signals: one of each kind.
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

// reap collects every child that has ended; one signal may be for several.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err != nil || pid <= 0 {
			return
		}
	}
}
