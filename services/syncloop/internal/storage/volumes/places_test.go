package volumes_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

// waiter is a plugin whose volumes wait for another process before they are set up.
type waiter struct {
	*plugin
	// waits receives the start of each wait, and may ends all of them.
	waits chan string
	may   chan struct{}
}

func (w *waiter) SetUp(ctx context.Context, r volumes.Request) error {
	err := volumes.Waiting(ctx, func(ctx context.Context) error {
		w.waits <- r.Volume.Name
		select {
		case <-w.may:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err != nil {
		return err
	}
	return w.plugin.SetUp(ctx, r)
}

// TestAVolumeThatWaitsHoldsNoPlace has more volumes that wait for another process than may be worked on at once. All of
// them wait at the same time, and afterwards no more than allowed are worked on. The clock stands still.
func TestAVolumeThatWaitsHoldsNoPlace(t *testing.T) {
	r := newRig(t)
	r.stop()
	const many, places = 20, 4
	w := &waiter{plugin: r.plugin, waits: make(chan string, many), may: make(chan struct{})}
	r.plugin.fixed = true
	r.restart(w)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	done := make(chan error, many)
	for i := range many {
		pod := newPod(types.UID(fmt.Sprintf("u%d", i)), "config")
		r.manager.Want(ctx, pod)
		go func() { done <- r.manager.Wait(ctx, pod) }()
	}
	for i := range many {
		select {
		case <-w.waits:
		case <-time.After(testTimeout):
			t.Fatalf("%d of %d volumes wait at once", i, many)
		}
	}
	open := r.plugin.hanging("config")
	close(w.may)
	eventually.That(t, "as many as allowed are set up at once", func() bool { return r.plugin.underWay() == places })
	open()
	for range many {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if r.plugin.most > places {
		t.Errorf("%d were set up at once, want %d at most", r.plugin.most, places)
	}
}

// TestAWaitEndsWithTheProcess checks that neither a wait nor a wait for a place delays the end.
func TestAWaitEndsWithTheProcess(t *testing.T) {
	r := newRig(t)
	r.stop()
	w := &waiter{plugin: r.plugin, waits: make(chan string, 1), may: make(chan struct{})}
	r.restart(w)
	r.manager.Want(t.Context(), newPod("u1", "config"))
	<-w.waits
	r.stop()
	if got := r.plugin.count("setup config"); got != 0 {
		t.Errorf("set up %d times after the end", got)
	}
	if err := volumes.Waiting(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Errorf("outside of an operation: %v", err)
	}
}
