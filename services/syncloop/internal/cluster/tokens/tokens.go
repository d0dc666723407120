// Package tokens provides the service account tokens of projected volumes. A token is bound to its pod, so that the API
// server rejects it once the pod is gone. It is cached, and replaced before it expires. The rules are the kubelet's;
// see [Tokens.Token].
//
// Tokens are kept in memory only. No error and no log line contains a token.
package tokens

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// requestTimeout bounds a request for a token. It is how long the other files of a volume may wait for an API server
// that hangs.
const requestTimeout = 10 * time.Second

// A forbidden request for a first token is repeated after firstPause, and after pauses that double up to lastPause.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 400 * time.Millisecond
)

// Issue requests a token of a service account. It fails if uid is not empty and is another account's.
type Issue func(ctx context.Context, namespace, account string, uid types.UID,
	spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error)

// Config configures Tokens.
type Config struct {
	// Issue requests tokens; see FromAPIServer. Required.
	Issue Issue
	// Changed is called for each pod with a token that must be replaced; the pod must then call Token again. It must not
	// block. Required.
	Changed func(uid types.UID)
	// Clock is the time. Required.
	Clock clock.Clock
	// Jitter returns a random number from 0 to 1; math/rand's if nil.
	Jitter func() float64
	// Logger logs each token that was not replaced in time; the default logger if nil.
	Logger *slog.Logger
}

// Tokens manages the tokens of all pods of a node. Use New to create one. Its methods may be called from any goroutine.
type Tokens struct {
	cfg Config
	// wake has capacity for one signal, which makes Run check everything.
	wake chan struct{}
	// asking ensures that only one goroutine requests each token.
	asking singleflight.Group

	mu   sync.Mutex
	held map[key]*held
}

// key identifies a token.
type key struct {
	pod                          types.UID
	namespace, account, audience string
	// seconds is the requested lifetime.
	seconds int64
	// asker is the UID of the account if the caller asks each time that it needs the token; empty for a token in a volume,
	// whose pod is notified when the token must be replaced.
	asker types.UID
}

// String returns a unique text for each key.
func (k key) String() string {
	return fmt.Sprintf("%q %q %q %q %d %q", k.pod, k.namespace, k.account, k.audience, k.seconds, k.asker)
}

// New returns empty Tokens.
func New(cfg Config) *Tokens {
	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Tokens{cfg: cfg, wake: make(chan struct{}, 1), held: map[key]*held{}}
}

// Token returns a token of the pod's service account that is bound to the pod, for an audience, or for the API server's
// own if audience is empty. A new token is valid for expirationSeconds; the API server may choose another lifetime.
//
// Token returns the same token until 80 % of its lifetime or 24 hours have passed, less up to ten seconds, so that pods
// that were started together do not send requests together. If no new token can be obtained then, Token returns the old
// one while it is valid, and retries after a pause. If there is no valid token it returns the API server's error. It
// also fails for a pod that the API server does not know, that is, a static or applied one.
func (t *Tokens) Token(ctx context.Context, pod *v1.Pod, audience string, expirationSeconds int64) (string, error) {
	return t.token(ctx, pod, key{audience: audience, seconds: expirationSeconds})
}

// UnwatchedToken is Token for a caller that asks each time that it needs a token: Changed is not called for it. The
// token is valid for an hour, as with a kubelet. It belongs to the account with the UID; if another account has the
// name of the pod's account, UnwatchedToken fails.
func (t *Tokens) UnwatchedToken(ctx context.Context, pod *v1.Pod, account types.UID, audience string) (string, error) {
	return t.token(ctx, pod, key{audience: audience, seconds: unwatchedSeconds, asker: account})
}

// token returns the token of a pod for a key.
func (t *Tokens) token(ctx context.Context, pod *v1.Pod, k key) (string, error) {
	if podset.IsStatic(pod) {
		instead := "leave the source of the volume out"
		if k.asker != "" {
			instead = "leave its serviceAccountName out"
		}
		return "", fmt.Errorf("only pods of the API server have tokens, and this one is of the source %q: create it in the API server, or %s", pod.Annotations[podset.AnnotationSource], instead)
	}
	k.pod, k.namespace, k.account = pod.UID, pod.Namespace, cmp.Or(pod.Spec.ServiceAccountName, defaultAccount)
	if secret, ok := t.fresh(k); ok {
		return secret, nil
	}
	secret, err, _ := t.asking.Do(k.String(), func() (any, error) {
		if secret, ok := t.fresh(k); ok {
			return secret, nil // Another goroutine has just asked.
		}
		return t.renew(ctx, pod, k)
	})
	if err != nil {
		return "", err
	}
	return secret.(string), nil //nolint:forcetypeassert // it is what the function above returns
}

// defaultAccount is the service account of a pod that names none.
const (
	defaultAccount = "default"
	// unwatchedSeconds is the API server's default lifetime of a token.
	unwatchedSeconds = 3600
)

// fresh returns the cached token if it need not be replaced yet.
func (t *Tokens) fresh(k key) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.held[k]
	if h == nil || h.mustRequest(t.cfg.Clock.Now()) {
		return "", false
	}
	return h.secret, true
}

// renew requests a token.
func (t *Tokens) renew(ctx context.Context, pod *v1.Pod, k key) (string, error) {
	spec := authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &k.seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID,
		},
	}
	if k.audience != "" {
		spec.Audiences = []string{k.audience}
	}
	requestedAt := t.cfg.Clock.Now() // The token may have been issued any time after this.
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := t.issue(limited, k, spec)
	if err == nil && answer.Status.Token == "" {
		err = errors.New("its answer contains no token")
	}
	if err != nil {
		return t.failed(ctx, k, fmt.Errorf("the API server was asked for a token: %w", err))
	}
	seconds := k.seconds
	if given := answer.Spec.ExpirationSeconds; given != nil {
		seconds = *given
	}
	t.mu.Lock()
	t.held[k] = newHeld(answer.Status.Token, requestedAt, time.Duration(seconds)*time.Second, t.cfg.Jitter())
	t.mu.Unlock()
	t.signal()
	return answer.Status.Token, nil
}

// issue asks for a token. The API server may tell the node of a pod before its own authorizer and admission know that
// the node has the pod, and forbids the token until then. A refused request is repeated for a moment, because the pod
// would wait longer after a failure and would get an event.
func (t *Tokens) issue(
	ctx context.Context, k key, spec authenticationv1.TokenRequestSpec,
) (*authenticationv1.TokenRequest, error) {
	pause := firstPause
	for {
		answer, err := t.cfg.Issue(ctx, k.namespace, k.account, k.asker, spec)
		if !apierrors.IsForbidden(err) || pause > lastPause || t.holds(k) {
			return answer, err
		}
		timer := t.cfg.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-timer.C():
		}
		pause *= 2
	}
}

// holds reports whether there is a token, even if it must be replaced.
func (t *Tokens) holds(k key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held[k] != nil
}

// failed returns the cached token if it is still valid; else it returns err.
func (t *Tokens) failed(ctx context.Context, k key, err error) (string, error) {
	now := t.cfg.Clock.Now()
	t.mu.Lock()
	h := t.held[k]
	if h == nil || h.expired(now) || ctx.Err() != nil {
		t.mu.Unlock()
		return "", err
	}
	h.putOff(now)
	left, secret := h.life-h.age(now), h.secret
	t.mu.Unlock()
	t.signal()
	t.cfg.Logger.WarnContext(ctx, "a token of a service account cannot be replaced; the old one stays while it is good, and it is tried again",
		telemetry.KeyPodUID, string(k.pod), "service_account", k.namespace+"/"+k.account, "good_for", left.Round(time.Second), telemetry.KeyError, err)
	return secret, nil
}

// Forget removes the tokens of a pod whose volumes are gone.
func (t *Tokens) Forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.held {
		if k.pod == uid {
			delete(t.held, k)
		}
	}
}

// Run tells pods when their tokens must be replaced until ctx ends. It returns the error of ctx.
func (t *Tokens) Run(ctx context.Context) error {
	timer := t.cfg.Clock.NewTimer(lookAgain)
	defer timer.Stop()
	for {
		affected, wait := t.due(t.cfg.Clock.Now())
		for _, uid := range affected {
			t.cfg.Changed(uid)
		}
		timer.Stop()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.wake:
		case <-timer.C():
		}
	}
}

// due returns the pods to be notified now, and how long to wait before the next check. It drops an expired token, so
// that the next call of Token requests another one or fails.
func (t *Tokens) due(now time.Time) (affected []types.UID, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait = lookAgain
	for k, h := range t.held {
		if h.expired(now) {
			delete(t.held, k)
			if k.asker == "" {
				affected = append(affected, k.pod)
			}
			continue
		}
		if k.asker != "" {
			wait = min(wait, h.life-h.age(now))
			continue
		}
		if h.mustNotify(now) {
			affected = append(affected, k.pod)
		}
		wait = min(wait, h.notifyAge-h.age(now), h.life-h.age(now))
	}
	slices.Sort(affected)
	return slices.Compact(affected), wait
}

// signal makes Run check everything.
func (t *Tokens) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}
