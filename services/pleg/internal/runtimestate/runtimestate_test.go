package runtimestate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/runtimestate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runtime reports the status that the test sets.
type runtime struct {
	internalapi.RuntimeService // the unused methods

	mu     sync.Mutex
	status *runtimeapi.StatusResponse
	err    error
	hangs  bool
	// asked has the times of the calls, since the test began.
	calls []time.Duration
	begun time.Time
}

func (r *runtime) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{RuntimeName: "fake", RuntimeVersion: "1.2"}, nil
}

func (r *runtime) Status(ctx context.Context, _ bool) (*runtimeapi.StatusResponse, error) {
	r.mu.Lock()
	r.calls = append(r.calls, time.Since(r.begun))
	status, err, hangs := r.status, r.err, r.hangs
	r.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return status, err
}

func (r *runtime) now(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	r.calls, r.begun = nil, time.Now()
}

func (r *runtime) askedAt() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// says returns the answer of a runtime with two handlers, which supports strict groups if it has a name for that.
func statusResponse(ready, network bool) *runtimeapi.StatusResponse {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: ready, Reason: "Reason", Message: "words"},
			{Type: runtimeapi.NetworkReady, Status: network, Message: "no plugin"},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{
			{
				Name:     "runc",
				Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true, UserNamespaces: true},
			},
			{Name: "kata"},
		},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
}

// TestTheRuntimeIsAskedEvery5SecondsAndWhileItIsUnwellEverySecond: its last status stays known while it does not
// answer.
func TestTheRuntimeIsAskedEvery5SecondsAndWhileItIsUnwellEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &runtime{status: statusResponse(true, false), begun: time.Now()}
		var reasons []string
		w := runtimestate.New(runtimestate.Config{
			Endpoint: "unix:///runtime.sock", Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
			Runtime: func(context.Context) (internalapi.RuntimeService, error) { return r, nil },
			Changed: func(reason string) { reasons = append(reasons, reason) },
		})
		if state, reason := w.State(); state != nil ||
			!strings.Contains(reason, "unix:///runtime.sock has not answered yet") {
			t.Errorf("before its first answer the runtime is %v, %q", state, reason)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		after := func(d time.Duration, reason string, want *lifecyclev1.Runtime, calls ...time.Duration) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			state, got := w.State()
			if !proto.Equal(state, want) || (reason == "") != (got == "") || !strings.Contains(got, reason) {
				t.Errorf("the runtime is %v, %q, want %v, %q", state, got, want, reason)
			}
			if at := r.askedAt(); !slices.Equal(at, calls) {
				t.Errorf("it was asked at %v, want %v", at, calls)
			}
		}
		whole := &lifecyclev1.Runtime{
			Name:                "fake",
			Version:             "1.2",
			Ready:               true,
			ReadyMessage:        "Reason: words",
			NetworkReadyMessage: "no plugin",
			Handlers:            []string{"kata", "runc"},
			RuntimeHandlers: []*lifecyclev1.RuntimeHandler{
				{Name: "kata"}, {Name: "runc", RecursiveReadOnlyMounts: true, UserNamespaces: true},
			},
			SupplementalGroupsPolicy: new(true),
		}
		after(12*time.Second, "", whole, 0, 5*time.Second, 10*time.Second)

		r.now(func() { r.err = errors.New("broken") })
		away := proto.CloneOf(whole)
		_, reason := unwell(t, w, 5*time.Second)
		away.Ready, away.ReadyMessage, away.NetworkReadyMessage = false, reason, reason
		after(0, "broken", away, 3*time.Second, 4*time.Second, 5*time.Second)

		r.now(func() { r.err, r.status = nil, statusResponse(false, true) })
		poorly := proto.CloneOf(whole)
		poorly.Ready, poorly.NetworkReady = false, true
		after(
			1500*time.Millisecond,
			"the container runtime at unix:///runtime.sock is not ready: Reason: words",
			poorly,
			time.Second,
		)

		r.now(func() { r.status, r.hangs = statusResponse(true, true), true })
		after(9*time.Second, "is not ready", poorly, 500*time.Millisecond)
		_, reason = unwell(t, w, 2*time.Second) // 10 s after the call
		if !strings.Contains(reason, "does not answer") && !strings.Contains(reason, "deadline") {
			t.Errorf("of a runtime that hangs it says %q", reason)
		}

		r.now(func() { r.hangs = false })
		well := proto.CloneOf(whole)
		well.NetworkReady = true
		time.Sleep(12 * time.Second)
		after(0, "", well, r.askedAt()...)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(reasons) != 5 || reasons[0] != "" || reasons[4] != "" {
			t.Errorf("it told %s, want each change once", fmt.Sprintf("%q", reasons))
		}
	})
}

// unwell waits, and returns the known state of an unreliable runtime.
func unwell(t *testing.T, w *runtimestate.Watcher, d time.Duration) (*lifecyclev1.Runtime, string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	state, reason := w.State()
	if reason == "" || state.GetReady() || state.GetNetworkReady() && !strings.Contains(reason, "not ready") {
		t.Errorf("the runtime is %v, %q, and it is unwell", state, reason)
	}
	return state, reason
}
