package volumes

import (
	"context"
	"time"
)

// turn is the place of a running operation among the concurrent ones.
type turn struct {
	// since is the time at which the operation got its place.
	since time.Time
	// waits is true while the operation waits for another process, and has no place.
	waits bool
	// granted is closed when an operation that asks for a place again has one; nil if it does not ask.
	granted chan struct{}
}

// stuckAt returns when an operation with a place gives it up; false for one without a place.
func (t *turn) stuckAt() (time.Time, bool) { return t.since.Add(stuckAfter), !t.waits }

// grant gives an operation a place again.
func (t *turn) grant(now time.Time) {
	close(t.granted)
	*t = turn{since: now}
}

// turnKey is the key of a turnOf in the context of an operation.
type turnKey struct{}

// turnOf identifies a running operation.
type turnOf struct {
	manager *Manager
	volume  key
}

// Waiting runs wait, which waits for another process and does nothing else, without a place among the concurrent
// operations. ctx is that of SetUp or TearDown; with any other one it only runs wait. It returns when the operation has
// a place again, or with the error of wait or of ctx: then the operation has none, and must end.
func Waiting(ctx context.Context, wait func(context.Context) error) error {
	mine, ok := ctx.Value(turnKey{}).(turnOf)
	if !ok {
		return wait(ctx)
	}
	mine.manager.leave(mine.volume)
	if err := wait(ctx); err != nil {
		return err
	}
	return mine.manager.queue(ctx, mine.volume)
}

// leave gives up the place of a running operation.
func (m *Manager) leave(volume key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[volume.pod].volumes[volume].turn.waits = true
	m.signal()
}

// queue waits until a running operation has a place again.
func (m *Manager) queue(ctx context.Context, volume key) error {
	m.mu.Lock()
	granted := make(chan struct{})
	m.pods[volume.pod].volumes[volume].turn.granted = granted
	m.signal()
	m.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
