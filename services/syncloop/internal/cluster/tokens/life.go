package tokens

import "time"

// The kubelet's values: a token is refreshed after this share of its lifetime, and at this age at the latest; in both
// cases up to maxJitter earlier.
const (
	livedPercent = 80
	maxAge       = 24 * time.Hour
	maxJitter    = 10 * time.Second
)

// After a failure the request is repeated after retryFirst, and the delay doubles up to retryMost. This is about as
// often as in a kubelet, which sends a request at each sync of the pod. A token is not refreshed before the age
// retryFirst, however short its lifetime is.
const (
	retryFirst = 10 * time.Second
	retryMost  = 2 * time.Minute
)

// lookAgain is how often ages are checked in any case, because the machine may have slept or its clock may have been
// set.
const lookAgain = time.Minute

// held is a token of a pod. Times are ages of the token by this node's clock only, so that a difference to the API
// server's clock does not matter.
type held struct {
	secret string
	// requestedAt is when the token was requested, life how long it is valid from then.
	requestedAt time.Time
	life        time.Duration
	// renewAge is the age at which another token is requested, notifyAge the age at which the pod is notified of it.
	renewAge, notifyAge time.Duration
	// failures counts the failed requests for another token.
	failures int
}

// newHeld returns the held of a new token; jitter is a number from 0 to 1.
func newHeld(secret string, requestedAt time.Time, life time.Duration, jitter float64) *held {
	at := replacedAt(life, jitter)
	return &held{secret: secret, requestedAt: requestedAt, life: life, renewAge: at, notifyAge: at}
}

// replacedAt returns the age at which a token of some life is replaced.
func replacedAt(life time.Duration, jitter float64) time.Duration {
	at := min(life/100*livedPercent, maxAge) - time.Duration(jitter*float64(maxJitter))
	return max(at, retryFirst)
}

// age returns the minimum age of the token. The monotonic clock stands still while the machine sleeps, and the time of
// day can be set back, so the greater of the two ages counts.
func (h *held) age(now time.Time) time.Duration {
	return max(now.Sub(h.requestedAt), now.Round(0).Sub(h.requestedAt.Round(0)))
}

// expired reports whether the token has expired.
func (h *held) expired(now time.Time) bool { return h.age(now) >= h.life }

// mustRequest reports whether another token must be requested.
func (h *held) mustRequest(now time.Time) bool { return h.age(now) >= h.renewAge || h.expired(now) }

// mustNotify reports whether the pod must be told to request another token, and schedules the next reminder.
func (h *held) mustNotify(now time.Time) bool {
	if h.age(now) < h.notifyAge {
		return false
	}
	h.notifyAge = h.age(now) + retryMost
	return true
}

// putOff delays the next request after a failure.
func (h *held) putOff(now time.Time) {
	pause := retryFirst
	for range h.failures {
		pause = min(2*pause, retryMost)
	}
	h.failures++
	h.renewAge = h.age(now) + min(pause, retryMost)
	h.notifyAge = h.renewAge
}
