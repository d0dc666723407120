package freeport

import (
	"fmt"
	"net"
	"testing"
)

// TestAPortIsFreeAndNotTheKernels: a server can listen on the port, and the kernel gives it to no outgoing connection.
func TestAPortIsFreeAndNotTheKernels(t *testing.T) {
	port, err := Find()
	if err != nil || port < first || port > last {
		t.Fatalf("Find() = %d, %v, want at least %d and at most %d", port, err, first, last)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
}
