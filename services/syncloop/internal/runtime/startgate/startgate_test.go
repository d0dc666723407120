package startgate_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/startgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// room is the number of places: the machine of these tests has three processors.
const room = 3

// crowd is work that records its concurrency and ends when the test permits it.
type crowd struct {
	inside  atomic.Int32
	entered chan struct{}
	leave   chan struct{}
}

func newCrowd(size int) *crowd {
	return &crowd{entered: make(chan struct{}, size), leave: make(chan struct{}, size)}
}

func (c *crowd) work() error {
	c.inside.Add(1)
	defer c.inside.Add(-1)
	c.entered <- struct{}{}
	<-c.leave
	return nil
}

func start(t *testing.T, gate *startgate.Gate, n int, c *crowd) (done chan error) {
	t.Helper()
	done = make(chan error, n)
	for range n {
		go func() { done <- gate.Pass(context.WithoutCancel(t.Context()), c.work) }()
	}
	return done
}

func TestNoMoreThanItsPlacesPassAtOnceAndAllPassInTheEnd(t *testing.T) {
	const pods = 20
	gate := startgate.New(room, clocktesting.NewFakeClock(time.Unix(0, 0)))
	c := newCrowd(pods)
	done := start(t, gate, pods, c)
	for range pods {
		<-c.entered
		if inside := c.inside.Load(); inside > room {
			t.Errorf("%d are inside at once, want at most %d", inside, room)
		}
		c.leave <- struct{}{}
	}
	for range pods {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestOneThatHangsGivesUpItsPlace(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	gate := startgate.New(room, clock)
	hung := newCrowd(room)
	hanging := start(t, gate, room, hung)
	for range room {
		<-hung.entered
	}
	other := newCrowd(1)
	passed := start(t, gate, 1, other)
	for clock.Waiters() < room {
		runtime.Gosched()
	}
	select {
	case <-other.entered:
		t.Fatal("the work passed a full gate")
	default:
	}
	clock.Step(startgate.Patience)
	<-other.entered
	other.leave <- struct{}{}
	if err := <-passed; err != nil {
		t.Error(err)
	}
	for range room {
		hung.leave <- struct{}{}
		if err := <-hanging; err != nil {
			t.Error(err)
		}
	}
}

func TestWhoGivesUpWaitingGetsTheReasonAndDoesNothing(t *testing.T) {
	gate := startgate.New(room, clocktesting.NewFakeClock(time.Unix(0, 0)))
	c := newCrowd(room)
	done := start(t, gate, room, c)
	for range room {
		<-c.entered
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := gate.Pass(ctx, func() error {
		t.Error("the work was done")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	for range room {
		c.leave <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
