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
	// maxKept is how many answers of a kind are kept; the one that was not needed for longest goes first.
	maxKept = 4096
	// maxAsking is how many different questions of a kind are asked at once, so that who makes up tokens does not keep the API
	// server, and whoever else asks, busy.
	maxAsking = 32
)

// ttl is how long an answer is kept; 0 is not at all.
type ttl = time.Duration

// errBusy says that too many others wait.
var errBusy = errors.New("too many others wait for an answer of the API server: ask again later")

// kept has the answers to questions, each for its time. A question that is just being asked is not asked twice.
type kept[T any] struct {
	answers *cache.LRUExpireCache
	asking  singleflight.Group
	places  chan struct{}
	// process is what calls live under.
	process context.Context //nolint:containedctx // a call outlives the request that has caused it
	// key makes of questions what they are found by, so that a token is nowhere in memory for longer than its request.
	key []byte
}

func newKept[T any](process context.Context, clk clock.PassiveClock) *kept[T] {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return &kept[T]{process: process, answers: cache.NewLRUExpireCacheWithClock(maxKept, clk), places: make(chan struct{}, maxAsking), key: key}
}

// get returns what is kept as the answer to a question, or else what ask answers, which it keeps for the time that ask says. It
// fails as ask does, when ctx ends before, and when too many are asking. The call of ask does not end with ctx, for others wait for
// it too, but after Timeout.
func (k *kept[T]) get(ctx context.Context, question string, ask func(ctx context.Context) (T, ttl, error)) (answer T, err error) {
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
