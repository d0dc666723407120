package resourceclaims

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// locks has a lock for each claim that is in work. It is held over calls of drivers, by the worker of a pod, so only
// pods with the same claim wait for it.
type locks struct {
	mu   sync.Mutex
	held map[types.NamespacedName]*lock
}

// lock is the lock of a claim. Who can put a value into the channel has the lock.
type lock struct {
	channel chan struct{}
	users   int
}

// acquire takes the locks of claims, which must be sorted, so that no two pods wait for each other. It fails when ctx
// ends.
func (l *locks) acquire(ctx context.Context, names []types.NamespacedName) (release func(), err error) {
	taken := 0
	release = func() {
		for i := taken - 1; i >= 0; i-- {
			<-l.of(names[i], 0).channel
			l.of(names[i], -1)
		}
	}
	for _, name := range names {
		select {
		case l.of(name, 1).channel <- struct{}{}:
			taken++
		case <-ctx.Done():
			l.of(name, -1)
			release()
			return nil, ctx.Err()
		}
	}
	return release, nil
}

// of returns the lock of a claim after a change of its number of users. One without users is dropped.
func (l *locks) of(name types.NamespacedName, change int) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.held[name]
	if one == nil {
		one = &lock{channel: make(chan struct{}, 1)}
		l.held[name] = one
	}
	if one.users += change; one.users == 0 {
		delete(l.held, name)
	}
	return one
}
