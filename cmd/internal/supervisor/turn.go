package supervisor

import (
	"context"
	"sync"
	"time"
)

// turnPatience bounds how long a process waits for the starts of others, which take milliseconds.
const turnPatience = time.Second

// turn is the place of a process among those that are started together. They start in order, and none waits for the
// end of its child before all have a child: Go's call that waits blocks one of the processors of this command, which
// has few, until the runtime notices, up to 20 ms later. The zero turn waits for nothing.
type turn struct {
	// before is closed when the process before this one has been started, and all when the last one has.
	before, all <-chan struct{}
	// begun closes the channel that the next process waits for.
	begun func()
}

// inTurn gives each process its turn.
func inTurn(processes []*Process) {
	var before <-chan struct{}
	last := make(chan struct{})
	for i, p := range processes {
		begun := make(chan struct{})
		if i == len(processes)-1 {
			begun = last
		}
		p.turn = turn{before: before, all: last, begun: sync.OnceFunc(func() { close(begun) })}
		before = begun
	}
}

// await waits until the process may start.
func (t *turn) await(ctx context.Context) { awaitOne(ctx, t.before) }

// awaitAll waits until all processes have been started.
func (t *turn) awaitAll(ctx context.Context) { awaitOne(ctx, t.all) }

// end ends the turn: the process has been started, or cannot be.
func (t *turn) end() {
	if t.begun != nil {
		t.begun()
	}
}

// awaitOne waits until a channel is closed, for turnPatience or until ctx ends. It does not wait for nil.
func awaitOne(ctx context.Context, closed <-chan struct{}) {
	if closed == nil {
		return
	}
	timer := time.NewTimer(turnPatience)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	case <-ctx.Done():
	}
}
