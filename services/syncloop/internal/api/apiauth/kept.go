package apiauth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

const (
	// maxKept is how many answers of a kind are cached; the least recently used one is evicted.
	maxKept = 4096
	// maxAsking is how many different questions of a kind are asked at once, so that a client with made-up tokens cannot
	// overload the API server or block other clients.
	maxAsking = 32
)

// ttl is how long an answer is cached; 0 means not at all.
type ttl = time.Duration

// errBusy is returned if too many requests wait.
var errBusy = errors.New("too many requests wait for an answer of the API server: try again later")

// kept caches the answers to questions, each for its own time. Concurrent calls with the same question share one call.
type kept[T any] struct {
	answers *cache.LRUExpireCache
	asking  singleflight.Group
	places  chan struct{}
	// process is the parent context of calls.
	process context.Context //nolint:containedctx // a call outlives the request that has caused it
	// key is the HMAC key that turns questions into cache keys, so that no token stays in memory after its request.
	key []byte
}

func newKept[T any](process context.Context, clk clock.PassiveClock) *kept[T] {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return &kept[T]{
		process: process, answers: cache.NewLRUExpireCacheWithClock(maxKept, clk), places: make(chan struct{}, maxAsking),
		key: key,
	}
}

// get returns the cached answer to a question, or calls ask and caches its answer for the returned time. It returns the
// error of ask, the error of ctx, and errBusy if too many calls are running. A call of ask does not end with ctx,
// because others may wait for it, but after Timeout.
func (k *kept[T]) get(
	ctx context.Context, question string, ask func(ctx context.Context) (T, ttl, error),
) (answer T, err error) {
	mac := hmac.New(sha256.New, k.key)
	_, _ = mac.Write([]byte(question)) // it never fails
	id := string(mac.Sum(nil))
	if found, ok := k.answers.Get(id); ok {
		if answer, ok := found.(T); ok {
			return answer, nil
		}
	}
	result := k.asking.DoChan(id, func() (any, error) {
		select {
		case k.places <- struct{}{}:
			defer func() { <-k.places }()
		default:
			return nil, errBusy
		}
		ctx, cancel := context.WithTimeout(k.process, Timeout)
		defer cancel()
		answer, keep, err := ask(ctx)
		if err != nil {
			return nil, err
		}
		if keep > 0 {
			k.answers.Add(id, answer, keep)
		}
		return answer, nil
	})
	select {
	case <-ctx.Done():
		return answer, ctx.Err()
	case done := <-result:
		if done.Err != nil {
			return answer, done.Err
		}
		answer, _ = done.Val.(T)
		return answer, nil
	}
}
