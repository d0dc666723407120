package dirlock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/dirlock"
)

// TestALockIsHeldByOneAtATime also checks that a lock of another directory is free, and that waiting ends with ctx.
func TestALockIsHeldByOneAtATime(t *testing.T) {
	var l dirlock.Locks
	unlock, err := l.Lock(t.Context(), "/a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Lock(t.Context(), "/b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Lock(ended, "/a"); !errors.Is(err, context.Canceled) {
		t.Errorf("the second holder: %v, want %v", err, context.Canceled)
	}
	got := make(chan func())
	go func() {
		next, _ := l.Lock(context.WithoutCancel(t.Context()), "/a")
		got <- next
	}()
	unlock()
	(<-got)()
	last, err := l.Lock(t.Context(), "/a")
	if err != nil {
		t.Fatal(err)
	}
	last()
}
