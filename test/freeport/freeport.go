// Package freeport finds ports for servers that need their port before they listen. The kernel's choice would be from
// the range of outgoing connections, so that another process could get the port before the server listens.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// first and last are between the usual ports of programs and those from 30000 on, which a cluster's services use. The
// kernel's own range begins at 32768.
const (
	first, last = 20000, 29999
	tries       = 100
)

// Find returns a port that is free now on all addresses of the machine.
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
	return 0, fmt.Errorf("none of the tried ports between %d and %d is free: %w", first, last, failed)
}
