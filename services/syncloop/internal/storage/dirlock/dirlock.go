// Package dirlock has locks by directory, which are waited for with a context.
package dirlock

import (
	"context"
	"sync"
)

// Locks are locks by directory. The zero value is ready for use.
type Locks struct {
	mu    sync.Mutex
	locks map[string]*held
}

// held is a lock that is held or waited for.
type held struct {
	// token has capacity one: the goroutine that has sent a value holds the lock.
	token chan struct{}
	users int
}

// Lock waits until no other goroutine holds the lock of a directory. The caller calls unlock. It fails with the error
// of ctx.
func (l *Locks) Lock(ctx context.Context, dir string) (unlock func(), err error) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[string]*held{}
	}
	h := l.locks[dir]
	if h == nil {
		h = &held{token: make(chan struct{}, 1)}
		l.locks[dir] = h
	}
	h.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(l.locks, dir)
		}
	}
	select {
	case h.token <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	return func() {
		<-h.token
		leave()
	}, nil
}
