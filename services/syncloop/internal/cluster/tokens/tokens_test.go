package tokens_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/tokens"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// shared is the cluster of these tests.
var shared = cluster.Shared{Options: []cluster.Option{cluster.ServiceAccounts()}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

// hidden is in every token of these tests.
const hidden = "hunter2"

// api issues tokens or fails.
type api struct {
	mu       sync.Mutex
	requests []string
	uid      types.UID
	spec     authenticationv1.TokenRequestSpec
	fails    error
	// given, if it is set, is the lifetime of each token in seconds, whatever was requested.
	given *int64
	empty bool
}

func (a *api) issue(
	_ context.Context, namespace, account string, uid types.UID, spec authenticationv1.TokenRequestSpec,
) (*authenticationv1.TokenRequest, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.requests, a.uid, a.spec = append(a.requests, namespace+"/"+account), uid, spec
	if a.fails != nil {
		return nil, a.fails
	}
	answer := &authenticationv1.TokenRequest{
		Spec: spec, Status: authenticationv1.TokenRequestStatus{Token: fmt.Sprintf("%s-%d", hidden, len(a.requests))},
	}
	if a.given != nil {
		answer.Spec.ExpirationSeconds = a.given
	}
	if a.empty {
		answer.Status.Token = ""
	}
	return answer, nil
}

func (a *api) failing(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails = err
}

func (a *api) times() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests)
}

// rig has tokens of an API server that may fail.
type rig struct {
	*tokens.Tokens
	api   *api
	clock *clocktesting.FakeClock
	log   *logbuffer.Buffer
}

func newRig(jitter float64) *rig {
	r := &rig{api: &api{}, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)), log: &logbuffer.Buffer{}}
	r.Tokens = tokens.New(tokens.Config{
		Issue: r.api.issue, Changed: func(types.UID) {}, Clock: r.clock, Jitter: func() float64 { return jitter },
		Logger: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	return r
}

func newPod(uid types.UID) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: uid, Annotations: map[string]string{"kubernetes.io/config.source": "api"}},
		Spec:       v1.PodSpec{ServiceAccountName: "robot"},
	}
}

// token requests a token, which must succeed.
func (r *rig) token(t *testing.T, pod *v1.Pod, audience string, seconds int64) string {
	t.Helper()
	token, err := r.Token(t.Context(), pod, audience, seconds)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestATokenIsMadeForItsPod(t *testing.T) {
	r := newRig(0)
	r.token(t, newPod("u1"), "vault", 900)
	ref := authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "u1"}
	if s := r.api.spec; r.api.requests[0] != "shop/robot" || fmt.Sprint(s.Audiences) != "[vault]" || *s.ExpirationSeconds != 900 || *s.BoundObjectRef != ref {
		t.Errorf("asked for %+v of %v, want r.api.requests[0] %q, Audiences %q, *s.ExpirationSeconds 900 and *s.BoundObjectRef %v",
			s, r.api.requests, "shop/robot", "[vault]", ref)
	}
	plain := newPod("u2")
	plain.Spec.ServiceAccountName = ""
	r.token(t, plain, "", 3607)
	if s := r.api.spec; r.api.requests[1] != "shop/default" || s.Audiences != nil || s.BoundObjectRef.UID != "u2" {
		t.Errorf("asked for %+v of %v", s, r.api.requests)
	}
}

// TestATokenOfAGivenAccountNotifiesNoPod checks a token that is bound to the pod and belongs to the given account, is
// valid for an hour and refreshed as any other. No pod is notified of it.
func TestATokenOfAGivenAccountNotifiesNoPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		tokens := tokens.New(tokens.Config{
			Issue: a.issue, Clock: clock.RealClock{}, Jitter: func() float64 { return 0 },
			Changed: func(uid types.UID) { t.Errorf("%s is notified", uid) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tokens.Run(ctx) }()
		ask := func(account types.UID, want string) {
			t.Helper()
			if token, err := tokens.UnwatchedToken(ctx, newPod("u1"), account, "registry"); err != nil || token != hidden+want {
				t.Errorf("token %q, error %v, want %q", token, err, hidden+want)
			}
		}
		ask("sa-1", "-1")
		ref := authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "u1"}
		if s := a.spec; a.uid != "sa-1" || a.requests[0] != "shop/robot" || fmt.Sprint(s.Audiences) != "[registry]" || *s.ExpirationSeconds != 3600 || *s.BoundObjectRef != ref {
			t.Errorf("asked for %+v of %s, %v", s, a.uid, a.requests)
		}
		ask("sa-1", "-1")
		ask("sa-2", "-2")
		time.Sleep(50 * time.Minute)
		ask("sa-1", "-3")
		time.Sleep(2 * time.Hour) // all tokens have expired
		ask("sa-1", "-4")
		static := newPod("u2")
		static.Annotations["kubernetes.io/config.source"] = "file"
		if _, err := tokens.UnwatchedToken(ctx, static, "sa-1", "registry"); err == nil || !strings.HasSuffix(err.Error(), "leave its serviceAccountName out") {
			t.Errorf("of a static pod: %v", err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestEachTokenIsOfOnePodAccountAudienceAndLife(t *testing.T) {
	r := newRig(0)
	other := newPod("u1")
	other.Spec.ServiceAccountName = "other"
	seen := map[string]bool{}
	for range 2 {
		seen[r.token(t, newPod("u1"), "", 3600)] = true
		seen[r.token(t, newPod("u2"), "", 3600)] = true
		seen[r.token(t, newPod("u1"), "vault", 3600)] = true
		seen[r.token(t, newPod("u1"), "", 600)] = true
		seen[r.token(t, other, "", 3600)] = true
	}
	if len(seen) != 5 || r.api.times() != 5 {
		t.Errorf("%d tokens, asked %d times, want 5", len(seen), r.api.times())
	}
	r.Forget("u1")
	r.token(t, newPod("u2"), "", 3600)
	if r.api.times() != 5 {
		t.Error("the token of another pod was forgotten")
	}
	r.token(t, newPod("u1"), "", 3600)
	if r.api.times() != 6 {
		t.Error("the token of a pod that is forgotten was kept")
	}
}

// TestWhenATokenIsReplaced checks the refresh: after 80 % of the lifetime, after a day at the latest, and up to ten
// seconds earlier.
func TestWhenATokenIsReplaced(t *testing.T) {
	given := int64(600)
	for _, tc := range []struct {
		name    string
		seconds int64
		given   *int64
		jitter  float64
		want    time.Duration
	}{
		{"the shortest", 600, nil, 0, 480 * time.Second},
		{"most jitter", 600, nil, 1, 470 * time.Second},
		{"the usual", 3607, nil, 0, 2885600 * time.Millisecond},
		{"half of the jitter", 3607, nil, 0.5, 2880600 * time.Millisecond},
		{"80 % before a day", 100_000, nil, 0, 80_000 * time.Second},
		{"a day before 80 %", 200_000, nil, 0, 24 * time.Hour},
		{"a day and jitter", 200_000, nil, 1, 24*time.Hour - 10*time.Second},
		{"a year", 365 * 86400, nil, 0, 24 * time.Hour},
		{"as the API server gives it", 3600, &given, 0, 480 * time.Second},
		{"too short to ask sooner", 15, nil, 1, 10 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(tc.jitter)
			r.api.given = tc.given
			first := r.token(t, newPod("u1"), "", tc.seconds)
			r.clock.Step(tc.want - time.Millisecond)
			if got := r.token(t, newPod("u1"), "", tc.seconds); got != first {
				t.Errorf("replaced before it was %v old", tc.want)
			}
			r.clock.Step(time.Millisecond)
			if got := r.token(t, newPod("u1"), "", tc.seconds); got == first {
				t.Errorf("not replaced when it was %v old", tc.want)
			}
		})
	}
}

func TestATokenThatCannotBeReplacedStaysWhileItIsGood(t *testing.T) {
	r := newRig(0)
	pod := newPod("u1")
	first := r.token(t, pod, "", 600)
	r.api.failing(errors.New("the server is on fire"))
	r.clock.Step(480 * time.Second)
	for i, pause := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
		if r.token(t, pod, "", 600) != first || r.api.times() != 2+i {
			t.Fatalf("after failure %d: asked %d times", i+1, r.api.times())
		}
		r.clock.Step(pause - time.Millisecond)
		if r.token(t, pod, "", 600) != first || r.api.times() != 2+i {
			t.Fatalf("it is asked again %v after failure %d", pause-time.Millisecond, i+1)
		}
		r.clock.Step(time.Millisecond)
	}
	r.clock.Step(50 * time.Second) // the token is 600 s old
	if token, err := r.Token(t.Context(), pod, "", 600); err == nil || !strings.Contains(err.Error(), "the server is on fire") || token != "" {
		t.Errorf("a token that has expired is given, or the error is %v", err)
	}
	if log := r.log.String(); strings.Count(log, "cannot be replaced") != 3 || !strings.Contains(log, "shop/robot") || strings.Contains(log, hidden) {
		t.Errorf("log\n%s\nwant %q 3 times, with %q and without %q", log, "cannot be replaced", "shop/robot", hidden)
	}
	r.api.failing(nil)
	if r.token(t, pod, "", 600) == first {
		t.Error("the old token is given")
	}
}

func TestAMissingTokenHasACause(t *testing.T) {
	r := newRig(0)
	r.api.failing(errors.New(`serviceaccounts "robot" not found`))
	if _, err := r.Token(t.Context(), newPod("u1"), "", 600); err == nil || err.Error() != `the API server was asked for a token: serviceaccounts "robot" not found` {
		t.Errorf("Token(600) error = %v, want %q",
			err, `the API server was asked for a token: serviceaccounts "robot" not found`)
	}
	r.api.failing(nil)
	r.api.empty = true
	if _, err := r.Token(t.Context(), newPod("u1"), "", 600); err == nil || !strings.Contains(err.Error(), "its answer contains no token") {
		t.Errorf("Token(600) error = %v, want an error with %q", err, "its answer contains no token")
	}
	static := newPod("u2")
	static.Annotations["kubernetes.io/config.source"] = "file"
	if _, err := r.Token(t.Context(), static, "", 600); err == nil || !strings.Contains(err.Error(), `the source "file"`) || r.api.times() != 2 {
		t.Errorf("got %v, asked %d times", err, r.api.times())
	}
}

// TestATokenOfAPodThatTheAPIServerDoesNotKnowYet checks that the request is retried, because the API server may send a
// pod to the node before its admission knows the pod.
func TestATokenOfAPodThatTheAPIServerDoesNotKnowYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forbidden := apierrors.NewForbidden(v1.Resource("serviceaccounts"), "robot", errors.New("node requested token bound to a pod scheduled on a different node"))
		for _, test := range []struct{ refused, requests int }{{2, 3}, {100, 5}} {
			a, began := &api{}, time.Now()
			issue := func(
				ctx context.Context, namespace, account string, uid types.UID, spec authenticationv1.TokenRequestSpec,
			) (*authenticationv1.TokenRequest, error) {
				a.fails = nil
				if len(a.requests) < test.refused {
					a.fails = forbidden
				}
				return a.issue(ctx, namespace, account, uid, spec)
			}
			tokens := tokens.New(tokens.Config{Changed: func(types.UID) {}, Clock: clock.RealClock{}, Issue: issue})
			_, err := tokens.Token(t.Context(), newPod("u1"), "", 600)
			if took := time.Since(began); (err == nil) != (test.refused < test.requests) || a.times() != test.requests ||
				took > time.Second {
				t.Errorf("refused %d times: asked %d times in %s, %v", test.refused, a.times(), took, err)
			}
		}
	})
}

func TestVolumesThatAskTogetherHaveOneToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &api{}
		issue := func(
			ctx context.Context, namespace, account string, uid types.UID, spec authenticationv1.TokenRequestSpec,
		) (*authenticationv1.TokenRequest, error) {
			time.Sleep(time.Second) // on the bubble's clock
			return a.issue(ctx, namespace, account, uid, spec)
		}
		tokens := tokens.New(tokens.Config{Changed: func(types.UID) {}, Clock: clock.RealClock{}, Issue: issue})
		var asking sync.WaitGroup
		for range 5 {
			asking.Go(func() {
				if token, err := tokens.Token(t.Context(), newPod("u1"), "", 600); err != nil || token != hidden+"-1" {
					t.Errorf("token %q, error %v, want %q", token, err, hidden+"-1")
				}
			})
		}
		asking.Wait()
	})
}

// TestAnAPIServerThatHangsIsNotWaitedFor checks that the wait is bounded, because the other files of the volume wait
// too.
func TestAnAPIServerThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		issue := func(
			ctx context.Context, _, _ string, _ types.UID, _ authenticationv1.TokenRequestSpec,
		) (*authenticationv1.TokenRequest, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		tokens := tokens.New(tokens.Config{Changed: func(types.UID) {}, Clock: clock.RealClock{}, Issue: issue})
		begun := time.Now()
		if _, err := tokens.Token(t.Context(), newPod("u1"), "", 600); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 10*time.Second {
			t.Errorf("got %v after %v", err, time.Since(begun))
		}
	})
}

// TestPodsAreNotifiedWhenTheirTokensMustBeReplaced also checks the notification after a failure and at the expiry.
func TestPodsAreNotifiedWhenTheirTokensMustBeReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, begun := &api{}, time.Now()
		notified := make(chan string, 100)
		tokens := tokens.New(tokens.Config{
			Issue: a.issue, Clock: clock.RealClock{}, Jitter: func() float64 { return 0 },
			Changed: func(uid types.UID) { notified <- fmt.Sprintf("%s %v", uid, time.Since(begun)) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tokens.Run(ctx) }()
		next := func(want string) {
			t.Helper()
			if got := <-notified; got != want {
				t.Errorf("told %s, want %s", got, want)
			}
		}
		ask := func(uid types.UID, seconds int64) error {
			_, err := tokens.Token(ctx, newPod(uid), "", seconds)
			return err
		}
		synctest.Wait() // it has checked and found nothing
		for _, uid := range []types.UID{"u1", "gone"} {
			if err := ask(uid, 600); err != nil {
				t.Fatal(err)
			}
		}
		tokens.Forget("gone")
		next("u1 8m0s")
		if err := ask("u1", 600); err != nil || a.times() != 3 {
			t.Fatalf("asked %d times, error %v, want 3", a.times(), err)
		}
		a.failing(errors.New("away"))
		next("u1 16m0s")
		// the last one because the token has expired
		for _, want := range []string{"u1 16m10s", "u1 16m30s", "u1 17m10s", "u1 18m0s"} {
			if err := ask("u1", 600); err != nil {
				t.Error(err)
			}
			next(want)
		}
		if err := ask("u1", 600); err == nil {
			t.Error("a token that has expired is given")
		}
		a.failing(nil)
		if err := ask("u1", 600); err != nil {
			t.Error(err)
		}
		next("u1 26m0s")
		next("u1 28m0s") // it is notified again if it does not request a token
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestWhateverFailsAPodHasAGoodToken checks that a pod gets a valid token if there is one, that the API server does not
// get too many requests, and that a token is refreshed in time if possible.
func TestWhateverFailsAPodHasAGoodToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(rapid.Float64Range(0, 1).Draw(t, "jitter"))
		seconds := rapid.Int64Range(600, 300_000).Draw(t, "seconds")
		made, requestedAt, good := map[string]time.Time{}, time.Time{}, time.Time{}
		life := time.Duration(seconds) * time.Second
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			r.api.failing(rapid.SampledFrom([]error{nil, errors.New("away")}).Draw(t, "fails"))
			before, now := r.api.times(), r.clock.Now()
			token, err := r.Token(context.Background(), newPod("u1"), "", seconds)
			if requested := r.api.times() > before; requested {
				if now.Before(good) && now.Sub(requestedAt) < 10*time.Second {
					t.Fatalf("asked again after %v", now.Sub(requestedAt))
				}
				requestedAt = now
				if r.api.fails == nil {
					made[token], good = now, now.Add(life)
				}
			}
			switch age := now.Sub(made[token]); {
			case err != nil && r.api.fails == nil:
				t.Fatalf("the API server has answered, and %v", err)
			case err == nil && age >= life:
				t.Fatalf("given a token of %v that is %v old", life, age)
			case err == nil && r.api.fails == nil && age >= min(life*8/10, 24*time.Hour) &&
				now.Sub(requestedAt) >= 2*time.Minute:
				t.Fatalf("given a token of %v that is %v old", life, age)
			}
			r.clock.Step(time.Duration(rapid.Int64Range(0, int64(life)).Draw(t, "step")) / time.Duration(rapid.SampledFrom([]int64{1, 10, 100}).Draw(t, "slower")))
		}
		if strings.Contains(r.log.String(), hidden) {
			t.Fatalf("log\n%s\nwant text without %q", r.log, hidden)
		}
	})
}
