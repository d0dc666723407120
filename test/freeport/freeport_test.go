package freeport

import (
	"fmt"
	"net"
	"testing"
)

// TestAPortIsFreeAndNotTheKernels: it can be listened on, and no connection of another program is given it meanwhile.
func TestAPortIsFreeAndNotTheKernels(t *testing.T) {
	port, err := Find()
	if err != nil || port < first || port > last {
		t.Fatalf("got %d, %v", port, err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
}
