package livenode

import (
	"context"
	"testing"
)

// RestartServices runs the services with other flags until the test ends. Then it restores their own flags for the
// other tests that share the node.
func (n *Node) RestartServices(t testing.TB, flags ...string) {
	t.Helper()
	if err := n.StopServices(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := n.StopServices(ctx); err != nil {
			t.Error(err)
		}
		n.restore(ctx, t)
	})
	if err := n.Up(t.Context(), flags...); err != nil {
		t.Fatal(err)
	}
}

// StopServicesMeanwhile stops the services until the test ends. Then it starts them for the other tests that share the
// node.
func (n *Node) StopServicesMeanwhile(t testing.TB) {
	t.Helper()
	if err := n.StopServices(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.restore(context.WithoutCancel(t.Context()), t) })
}

// restore starts the services with their own flags. It is a no-op when they are running.
func (n *Node) restore(ctx context.Context, t testing.TB) {
	if err := n.Up(ctx); err != nil {
		t.Error(err)
	}
}
