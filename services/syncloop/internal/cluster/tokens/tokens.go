// Package tokens gives pods the tokens of their service accounts that are in projected volumes: each is bound to its
// pod, so that the API server takes it for no longer than the pod is there, is kept until it has to be replaced, and is
// asked for anew before it expires. The rules are the kubelet's; see [Tokens.Token].
//
// A token is in memory here and nowhere else. No error and no line of the log has one.
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

// requestTimeout bounds a request for a token: so long the other files of a volume may wait for an API server that
// hangs.
const requestTimeout = 10 * time.Second

// A forbidden request for a first token is repeated after firstPause, and after pauses that double up to lastPause.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 400 * time.Millisecond
)

// Issue has a token of a service account made. It fails when uid is another account's, unless that is empty.
type Issue func(ctx context.Context, namespace, account string, uid types.UID, spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error)

// Config is what Tokens need.
type Config struct {
	// Issue has tokens made; see FromAPIServer. Required.
	Issue Issue
	// Changed is told each pod that has a token which is to be replaced: the pod asks for it again then. It must not
	// block. Required.
	Changed func(uid types.UID)
	// Clock is the time. Required.
	Clock clock.Clock
	// Jitter is a number from 0 to 1, another one each time; math/rand's when nil.
	Jitter func() float64
	// Logger gets a line for each token that could not be replaced in time; the default one when nil.
	Logger *slog.Logger
}

// Tokens has the tokens of all pods of a node. Make it with New. Its methods may be called from any goroutine.
type Tokens struct {
	cfg Config
	// wake has room for one signal: who wakes looks at everything.
	wake chan struct{}
	// asking has each token asked for by one at a time.
	asking singleflight.Group

	mu   sync.Mutex
	held map[key]*held
}

// key is what a token is made for.
type key struct {
	pod                          types.UID
	namespace, account, audience string
	// seconds is how long it is to be good.
	seconds int64
	// asker names the account by its UID when who asks does so each time that it needs the token; empty for one that
	// stands in a volume, whose pod is told when there is to be another one.
	asker types.UID
}

// String tells keys apart.
func (k key) String() string {
	return fmt.Sprintf("%q %q %q %q %d %q", k.pod, k.namespace, k.account, k.audience, k.seconds, k.asker)
}

// New makes Tokens that has none yet.
func New(cfg Config) *Tokens {
	if cfg.Jitter == nil {
		cfg.Jitter = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Tokens{cfg: cfg, wake: make(chan struct{}, 1), held: map[key]*held{}}
}

// Token gives a token of the pod's service account that is bound to the pod, for an audience, the API server's own when
// it is empty, good for so many seconds when it is new; the API server may choose another time.
//
// It gives the same one until that has lived for 80 % of its time or for 24 hours, less up to ten seconds, so that pods
// which were started together do not ask together. When no new one can be had then, the old one is given while it is
// good, and it is tried again after a pause. It fails when there is none that is good, with what the API server says,
// and for a pod that the API server does not know: a static or applied one.
func (t *Tokens) Token(ctx context.Context, pod *v1.Pod, audience string, expirationSeconds int64) (string, error) {
	return t.token(ctx, pod, key{audience: audience, seconds: expirationSeconds})
}

// UnwatchedToken is Token for who asks each time that it needs one: nobody is told when there is to be another one. The
// token is good for an hour, as of a kubelet, and of the account with a UID: when another one has the pod's account's
// name by now, it fails.
func (t *Tokens) UnwatchedToken(ctx context.Context, pod *v1.Pod, account types.UID, audience string) (string, error) {
	return t.token(ctx, pod, key{audience: audience, seconds: unwatchedSeconds, asker: account})
}

// token gives the token of a pod that k says the rest of.
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
			return secret, nil // another has just asked
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
	// unwatchedSeconds is how long a token is good that a request says nothing of, by the API server's default.
	unwatchedSeconds = 3600
)

// fresh gives the token that there is, if it need not be replaced, or not now.
func (t *Tokens) fresh(k key) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.held[k]
	if h == nil || h.asks(t.cfg.Clock.Now()) {
		return "", false
	}
	return h.secret, true
}

// renew asks for a token.
func (t *Tokens) renew(ctx context.Context, pod *v1.Pod, k key) (string, error) {
	spec := authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &k.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}
	if k.audience != "" {
		spec.Audiences = []string{k.audience}
	}
	asked := t.cfg.Clock.Now() // it may have been made any time after this
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := t.issue(limited, k, spec)
	if err == nil && answer.Status.Token == "" {
		err = errors.New("its answer has none")
	}
	if err != nil {
		return t.failed(ctx, k, fmt.Errorf("the API server was asked for a token: %w", err))
	}
	seconds := k.seconds
	if given := answer.Spec.ExpirationSeconds; given != nil {
		seconds = *given
	}
	t.mu.Lock()
	t.held[k] = newHeld(answer.Status.Token, asked, time.Duration(seconds)*time.Second, t.cfg.Jitter())
	t.mu.Unlock()
	t.signal()
	return answer.Status.Token, nil
}

// issue asks for a token. The API server may tell the node of a pod before its own authorizer and admission know that
// the node has the pod, and forbids the token until then. A refused request is repeated for a moment, because the pod
// would wait longer after a failure and would get an event.
func (t *Tokens) issue(ctx context.Context, k key, spec authenticationv1.TokenRequestSpec) (*authenticationv1.TokenRequest, error) {
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

// holds says whether there is a token, be it to be replaced.
func (t *Tokens) holds(k key) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held[k] != nil
}

// failed gives the token that there is although it is to be replaced, if there is one that is good; else it fails with
// err.
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

// Forget drops the tokens of a pod whose volumes are gone.
func (t *Tokens) Forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.held {
		if k.pod == uid {
			delete(t.held, k)
		}
	}
}

// Run tells of tokens that are to be replaced until ctx ends, whose error it returns.
func (t *Tokens) Run(ctx context.Context) error {
	timer := t.cfg.Clock.NewTimer(lookAgain)
	defer timer.Stop()
	for {
		told, wait := t.due(t.cfg.Clock.Now())
		for _, uid := range told {
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

// due are the pods that are to be told now, and how long to wait before looking again. A token that has expired is
// dropped: whoever is told of it has to ask, and to fail if there is no other.
func (t *Tokens) due(now time.Time) (told []types.UID, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait = lookAgain
	for k, h := range t.held {
		if h.expired(now) {
			delete(t.held, k)
			if k.asker == "" {
				told = append(told, k.pod)
			}
			continue
		}
		if k.asker != "" {
			wait = min(wait, h.life-h.age(now))
			continue
		}
		if h.tells(now) {
			told = append(told, k.pod)
		}
		wait = min(wait, h.tellAt-h.age(now), h.life-h.age(now))
	}
	slices.Sort(told)
	return slices.Compact(told), wait
}

// signal has Run look at everything.
func (t *Tokens) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}
