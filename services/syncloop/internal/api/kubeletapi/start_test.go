package kubeletapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

// started returns a start that is over.
func started() *Start {
	s := NewStart()
	close(s.over)
	return s
}

// startingPods are Pods that are not known until a channel is closed.
type startingPods struct{ known chan struct{} }

func (p startingPods) Pods() ([]*v1.Pod, error) {
	select {
	case <-p.known:
		return nil, nil
	default:
		return nil, &podstore.NotReadyError{Reason: "syncloop is starting"}
	}
}

// starting returns a rig whose pods are known after some time.
func starting(t *testing.T, after time.Duration) *rig {
	t.Helper()
	r := newRig(t)
	pods := startingPods{known: make(chan struct{})}
	r.cfg.Pods, r.cfg.Start = pods, NewStart()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = r.cfg.Start.Run(ctx, func(ctx context.Context) {
			select {
			case <-ctx.Done():
			case <-pods.known:
			}
		})
	})
	timer := time.AfterFunc(after, func() { close(pods.known) })
	t.Cleanup(func() {
		timer.Stop()
		cancel()
		running.Wait()
	})
	return r
}

// TestARequestWaitsForAProcessThatIsStarting checks that a request waits for a bounded time, and only if it needs pods
// or the runtime.
func TestARequestWaitsForAProcessThatIsStarting(t *testing.T) {
	for _, c := range []struct {
		method, path  string
		after, waited time.Duration
		code          int
	}{
		{"GET", "/pods", 3 * time.Second, 3 * time.Second, 200},
		{"GET", "/stats/summary", 3 * time.Second, 3 * time.Second, 200},
		{"GET", "/metrics/resource", 3 * time.Second, 3 * time.Second, 200},
		{"GET", "/metrics/cadvisor", 3 * time.Second, 3 * time.Second, 200},
		{"GET", "/runningpods/", 3 * time.Second, 3 * time.Second, 500},
		{"GET", "/containerLogs/default/web/main", 3 * time.Second, 3 * time.Second, 404},
		{"POST", "/exec/default/web/main?command=ls&output=1", 3 * time.Second, 3 * time.Second, 400},
		{"POST", "/attach/default/web/main?output=1", 3 * time.Second, 3 * time.Second, 400},
		{"POST", "/portForward/default/web", 3 * time.Second, 3 * time.Second, 400},
		{"POST", "/run/default/web/main?cmd=ls", 3 * time.Second, 3 * time.Second, 404},
		{"POST", "/checkpoint/default/web/main", 3 * time.Second, 3 * time.Second, 404},
		{"GET", "/pods", time.Minute, startTimeout, 503},
		{"GET", "/containerLogs/default/web/main", time.Minute, startTimeout, 503},
		{"GET", "/healthz", time.Minute, 0, 200},
		{"GET", "/healthz/syncloop", time.Minute, 0, 200},
		{"GET", "/metrics", time.Minute, 0, 200},
		{"GET", "/configz", time.Minute, 0, 200},
	} {
		t.Run(fmt.Sprintf("%s after %v", c.path, c.after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, begun := starting(t, c.after), time.Now()
				answer := r.ask(c.method, c.path)
				if waited := time.Since(begun); answer.Code != c.code || waited != c.waited {
					t.Errorf("%d after %v, want %d after %v: %s", answer.Code, waited, c.code, c.waited, answer.Body)
				}
			})
		})
	}
}

// TestARequestWaitsOnlyOnce checks that requests do not wait after the start, even if the pods are not known.
func TestARequestWaitsOnlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := starting(t, time.Hour)
		r.ask(http.MethodGet, "/pods")
		begun := time.Now()
		if answer := r.ask(http.MethodGet, "/pods"); answer.Code != 503 || time.Since(begun) != 0 {
			t.Errorf("%d after %v, want 503 and 0", answer.Code, time.Since(begun))
		}
	})
}

func TestARequestOfAClientThatLeavesDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, begun := starting(t, time.Minute), time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		api := Node(r.cfg)
		defer api.Close()
		api.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/pods", nil))
		if waited := time.Since(begun); waited != time.Second {
			t.Errorf("it has waited for %v, want %v", waited, time.Second)
		}
	})
}

// TestOnlySoManyRequestsWait checks that a request above the limit is answered at once.
func TestOnlySoManyRequestsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, begun := starting(t, 3*time.Second), time.Now()
		// The rig's own logger and guard do not support concurrent requests.
		r.cfg.Logger = slog.New(slog.DiscardHandler)
		r.cfg.Guard = func(next http.Handler, _ ...string) http.Handler { return next }
		api := Node(r.cfg)
		defer api.Close()
		ask := func() int {
			answer := httptest.NewRecorder()
			api.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods", nil))
			return answer.Code
		}
		var waiting sync.WaitGroup
		for range maxWaiting {
			waiting.Go(func() {
				if code := ask(); code != 200 {
					t.Errorf("a request that has waited: %d, want 200", code)
				}
			})
		}
		synctest.Wait()
		if code := ask(); code != 503 || time.Since(begun) != 0 {
			t.Errorf("one more: %d after %v", code, time.Since(begun))
		}
		waiting.Wait()
	})
}
