package apiauth

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

const (
	// maxAsking is how many different questions of a lane are asked at once, and maxWaiting how many more wait. A
	// request over that fails at once.
	maxAsking, maxWaiting = 16, 256
	// maxEach is how many questions of one asker are asked or wait in the lane of new questions.
	maxEach = 8
	// newPerSecond and distrustedPerSecond are how many questions of these two lanes are asked in a second. Together
	// they are less than the 50 requests that kubeAPIQPS permits, so that the others find room.
	newPerSecond, distrustedPerSecond = 20, 10
	// distrust is how long an asker is distrusted after an answer that refused it.
	distrust = time.Minute
	// remembered is how long a question is known after an answer that did not refuse it.
	remembered = 24 * time.Hour
)

// errBusy is returned if too many requests wait.
var errBusy = errors.New("too many requests wait for an answer of the API server: try again later")

// lane bounds how many questions are asked at once, how many wait, and how many are asked in a second.
type lane struct {
	places, waiting chan struct{}
	limit           *rate.Limiter
}

func newLane(perSecond rate.Limit) *lane {
	return &lane{
		places: make(chan struct{}, maxAsking), waiting: make(chan struct{}, maxWaiting),
		limit: rate.NewLimiter(perSecond, maxAsking),
	}
}

// enter waits for a place, which leave gives back. It fails if too many wait, or at the end of ctx.
func (l *lane) enter(ctx context.Context) (leave func(), err error) {
	select {
	case l.waiting <- struct{}{}:
		defer func() { <-l.waiting }()
	default:
		return nil, errBusy
	}
	if err := l.limit.Wait(ctx); err != nil {
		return nil, errors.Join(errBusy, err)
	}
	select {
	case l.places <- struct{}{}:
		return func() { <-l.places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// lanes keep questions apart, so that none waits behind the wrong questions of others. A question that had a good
// answer before is known. A question of an asker that was refused within the last minute, or that has maxEach other
// questions, is distrusted. Others are new.
type lanes struct {
	known, fresh, distrusted *lane
	// good are the known questions, refused the distrusted askers. Both are bounded by maxKept.
	good, refused *cache.LRUExpireCache

	mu sync.Mutex
	// asking counts the new questions of each asker. There are at most maxAsking+maxWaiting.
	asking map[string]int
}

func newLanes(clk clock.PassiveClock) *lanes {
	return &lanes{
		known: newLane(rate.Inf), fresh: newLane(newPerSecond), distrusted: newLane(distrustedPerSecond),
		good: cache.NewLRUExpireCacheWithClock(maxKept, clk), refused: cache.NewLRUExpireCacheWithClock(maxKept, clk),
		asking: make(map[string]int),
	}
}

// enter waits for a place in the lane of a question.
func (l *lanes) enter(ctx context.Context, id, asker string) (leave func(), err error) {
	if _, ok := l.good.Get(id); ok {
		return l.known.enter(ctx)
	}
	if _, ok := l.refused.Get(asker); ok || !l.count(asker) {
		return l.distrusted.enter(ctx)
	}
	free, err := l.fresh.enter(ctx)
	if err != nil {
		l.uncount(asker)
		return nil, err
	}
	return func() {
		free()
		l.uncount(asker)
	}, nil
}

// count reports whether an asker may ask one more new question, and counts it.
func (l *lanes) count(asker string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asking[asker] >= maxEach {
		return false
	}
	l.asking[asker]++
	return true
}

func (l *lanes) uncount(asker string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asking[asker]--; l.asking[asker] == 0 {
		delete(l.asking, asker)
	}
}

// answered remembers that an answer to a question was good, or, of a wrong one, whose it was.
func (l *lanes) answered(id, asker string, good bool) {
	if good {
		l.good.Add(id, struct{}{}, remembered)
		return
	}
	l.good.Remove(id)
	l.refused.Add(asker, struct{}{}, distrust)
}
