package apiauth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

// maxKept is how many good answers of a kind are cached, and how many others; the least recently used one is evicted.
const maxKept = 4096

// ttl is how long an answer is cached; 0 means not at all.
type ttl = time.Duration

// kept caches the answers to questions, each for its own time. Concurrent calls with the same question share one call.
type kept[T any] struct {
	// answers are the good ones. Others are kept apart, so that made-up questions do not evict good answers.
	answers, others *cache.LRUExpireCache
	asking          singleflight.Group
	lanes           *lanes
	// process is the parent context of calls.
	process context.Context //nolint:containedctx // a call outlives the request that has caused it
	// key is the HMAC key that turns questions into cache keys, so that no token stays in memory after its request.
	key []byte
}

func newKept[T any](process context.Context, clk clock.PassiveClock) *kept[T] {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return &kept[T]{
		process: process, answers: cache.NewLRUExpireCacheWithClock(maxKept, clk),
		others: cache.NewLRUExpireCacheWithClock(maxKept, clk), lanes: newLanes(clk), key: key,
	}
}

// answer is an answer to a question.
type answer[T any] struct {
	value T
	// good is false for an answer that refuses the asker, and wrong is true if a question with such an answer makes the
	// asker suspicious.
	good, wrong bool
	ttl         ttl
}

// get returns the cached answer to a question, or calls ask and caches its answer. It returns the error of ask, the
// error of ctx, and errBusy if too many calls wait. A call of ask does not end with ctx, because others may wait for
// it, but Timeout after its question. Asker is whose question it is: askers do not wait for each other's wrong
// questions.
func (k *kept[T]) get(
	ctx context.Context, question, asker string, ask func(ctx context.Context) (answer[T], error),
) (value T, err error) {
	mac := hmac.New(sha256.New, k.key)
	_, _ = mac.Write([]byte(question)) // it never fails
	id := string(mac.Sum(nil))
	for _, answers := range []*cache.LRUExpireCache{k.answers, k.others} {
		if found, ok := answers.Get(id); ok {
			if value, ok := found.(T); ok {
				return value, nil
			}
		}
	}
	result := k.asking.DoChan(id, func() (any, error) { return k.ask(id, asker, ask) })
	select {
	case <-ctx.Done():
		return value, ctx.Err()
	case done := <-result:
		if done.Err != nil {
			return value, done.Err
		}
		value, _ = done.Val.(T)
		return value, nil
	}
}

// ask asks for an answer, when it is the question's turn, and caches it.
func (k *kept[T]) ask(id, asker string, ask func(ctx context.Context) (answer[T], error)) (any, error) {
	ctx, cancel := context.WithTimeout(k.process, Timeout)
	defer cancel()
	leave, err := k.lanes.enter(ctx, id, asker)
	if err != nil {
		return nil, err
	}
	defer leave()
	got, err := ask(ctx)
	if err != nil {
		return nil, err
	}
	if got.good || got.wrong {
		k.lanes.answered(id, asker, got.good)
	}
	answers := k.answers
	if !got.good {
		answers = k.others
	}
	if got.ttl > 0 {
		answers.Add(id, got.value, got.ttl)
	}
	return got.value, nil
}
