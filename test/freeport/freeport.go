// Package freeport finds ports for servers that are told theirs before they listen. The kernel would give one of those that it also
// gives to outgoing connections, of anybody on the machine, in the moment before the server has it.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// first and last are between the ports that programs have by default and those from 30000 on, of a cluster's services, above which are
// the kernel's own, from 32768 on.
const (
	first, last = 20000, 29999
	tries       = 100
)

// Find returns a port that nobody has at this moment, on any address of the machine.
func Find() (int, error) {
	var failed error
	for range tries {
		port := first + rand.IntN(last-first+1)
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			return port, listener.Close()
		}
		failed = err
	}
	return 0, fmt.Errorf("no port of %d to %d that was tried is free: %w", first, last, failed)
}
