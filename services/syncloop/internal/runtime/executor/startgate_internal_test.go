package executor

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// places is the number of places: the machine of these tests has three processors.
const places = 3

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

func passAll(t *testing.T, gate *startGate, n int, c *crowd) (done chan error) {
	t.Helper()
	done = make(chan error, n)
	for range n {
		go func() { done <- gate.pass(context.WithoutCancel(t.Context()), c.work) }()
	}
	return done
}

func TestNoMoreThanItsPlacesPassAtOnceAndAllPassInTheEnd(t *testing.T) {
	const pods = 20
	gate := newStartGate(places, clocktesting.NewFakeClock(time.Unix(0, 0)))
	c := newCrowd(pods)
	done := passAll(t, gate, pods, c)
	for range pods {
		<-c.entered
		if inside := c.inside.Load(); inside > places {
			t.Errorf("%d are inside at once, want at most %d", inside, places)
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
	gate := newStartGate(places, clock)
	hung := newCrowd(places)
	hanging := passAll(t, gate, places, hung)
	for range places {
		<-hung.entered
	}
	other := newCrowd(1)
	passed := passAll(t, gate, 1, other)
	for clock.Waiters() < places {
		runtime.Gosched()
	}
	select {
	case <-other.entered:
		t.Fatal("the work passed a full gate")
	default:
	}
	clock.Step(startPatience)
	<-other.entered
	other.leave <- struct{}{}
	if err := <-passed; err != nil {
		t.Error(err)
	}
	for range places {
		hung.leave <- struct{}{}
		if err := <-hanging; err != nil {
			t.Error(err)
		}
	}
}

func TestACancelledWaitReturnsTheReasonAndDoesNothing(t *testing.T) {
	gate := newStartGate(places, clocktesting.NewFakeClock(time.Unix(0, 0)))
	c := newCrowd(places)
	done := passAll(t, gate, places, c)
	for range places {
		<-c.entered
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := gate.pass(ctx, func() error {
		t.Error("the work was done")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	for range places {
		c.leave <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
