package statedir

import (
	"errors"
	"testing"

	"github.com/quartet-node/quartet/internal/process"
)

func TestAHolderIsProvenByItsWholeIdentity(t *testing.T) {
	self := Self("pleg")
	for what, c := range map[string]struct {
		change         func(*Holder)
		named, foreign bool
		proven         bool
	}{
		"itself":                   {change: func(*Holder) {}, named: true, proven: true},
		"a reused number":          {change: func(h *Holder) { h.Started++ }, named: true},
		"of before the boot":       {change: func(h *Holder) { h.Boot = "x" }, foreign: true},
		"of another PID namespace": {change: func(h *Holder) { h.PIDNamespace = "pid:[1]" }, foreign: true},
		"of an older version":      {change: func(h *Holder) { h.Started = 0 }},
		"nobody":                   {change: func(h *Holder) { *h = Holder{} }},
	} {
		holder := self
		c.change(&holder)
		err := holder.named()
		if (err == nil) != c.named || errors.Is(err, process.ErrForeign) != c.foreign {
			t.Errorf("%s: named() = %v, want success: %t", what, err, c.named)
		}
		if err == nil && (holder.prove() == nil) != c.proven {
			t.Errorf("%s: prove() = %v, want success: %t", what, holder.prove(), c.proven)
		}
	}
}

// TestTheHolderOfALockIsOpened checks a lock that this process holds.
func TestTheHolderOfALockIsOpened(t *testing.T) {
	dir := t.TempDir()
	lock, err := Lock(dir, "pleg")
	must(t, err)
	_, err = Lock(dir, "pleg")
	var held *HeldError
	if !errors.As(err, &held) {
		t.Fatalf("Lock() = %v, want a HeldError", err)
	}
	holder, err := held.Open()
	must(t, err)
	if holder.PID() != Self("pleg").PID {
		t.Errorf("holder.PID() = %d, want %d", holder.PID(), Self("pleg").PID)
	}
	must(t, holder.Close())
	must(t, lock.Release())
	if _, err := held.Open(); err == nil {
		t.Error("a released lock has a proven holder")
	}
}
