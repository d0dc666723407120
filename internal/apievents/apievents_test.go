package apievents_test

import (
	"bytes"
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

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apievents"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/test/cluster"
)

var shared cluster.Shared

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }

var (
	errAway  = errors.New("connection refused")
	resource = schema.GroupResource{Resource: "events"}
)

// rig is a Sender, in a bubble of synctest, and the API server that receives its events.
type rig struct {
	*apievents.Sender
	t        *testing.T
	registry *prometheus.Registry

	mu   sync.Mutex
	log  bytes.Buffer
	here map[string]*v1.Event
	sent []string
	// fail returns the result of a request for an event.
	fail func(name string) error
	// requests is the number of requests, with the time of the last one.
	requests int
	last     time.Time
}

// start starts a rig, and returns the function that stops it.
func start(t *testing.T) *rig {
	r := &rig{
		t:        t,
		registry: prometheus.NewRegistry(),
		here:     map[string]*v1.Event{},
		fail:     func(string) error { return nil },
	}
	r.Sender = apievents.New(apievents.Config{
		API:     r,
		Clock:   clock.RealClock{},
		Logger:  slog.New(slog.NewTextHandler(&r.log, nil)),
		Metrics: apievents.NewMetrics(r.registry),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v, want %v", err, context.Canceled)
		}
	})
	return r
}

// Create implements apievents.API.
func (r *rig) Create(_ context.Context, e *v1.Event) error {
	return r.request("create", e.Name, func() error {
		if r.here[e.Name] != nil {
			return apierrors.NewAlreadyExists(resource, e.Name)
		}
		r.here[e.Name] = e
		return nil
	})
}

// Patch implements apievents.API.
func (r *rig) Patch(_ context.Context, namespace, name string, patch []byte) error {
	return r.request(fmt.Sprintf("patch %s", patch), name, func() error {
		if r.here[name] == nil || namespace != "ns" {
			return apierrors.NewNotFound(resource, name)
		}
		return nil
	})
}

func (r *rig) request(what, name string, do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests++
	r.last = time.Now()
	if err := r.fail(name); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	r.sent = append(r.sent, name+": "+what)
	return nil
}

// fails sets the result of later requests.
func (r *rig) fails(f func(name string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = f
}

func (r *rig) recovers() { r.fails(func(string) error { return nil }) }

// want waits for a duration and compares the requests that the API server has received.
func (r *rig) want(after time.Duration, sent ...string) {
	r.t.Helper()
	time.Sleep(after) //nolint:forbidigo // the bubble's time
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.sent, sent) {
		r.t.Errorf("told\n%s\nwant\n%s", strings.Join(r.sent, "\n"), strings.Join(sent, "\n"))
	}
}

func (r *rig) dropped(reason string, want float64) {
	r.t.Helper()
	metricstest.Want(r.t, r.registry, want, "quartet_events_dropped_total", "reason", reason)
}

func event(name string, count int32) *v1.Event {
	return &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns",
			Name:      name,
		},
		Reason:        "BackOff",
		Message:       "again",
		Count:         count,
		LastTimestamp: metav1.Now(),
	}
}

// stamp is the bubble's time at its start, after so many seconds.
func patched(count, seconds int) string {
	return fmt.Sprintf(`patch {"message":"again","count":%d,"lastTimestamp":"2000-01-01T00:00:%02dZ"}`, count, seconds)
}

func TestAnEventIsMadeAndThenCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.Send(event("a", 1))
		r.want(0, "a: create")
		r.Send(event("b", 1))
		r.Send(event("a", 2))
		r.want(0, "a: create", "b: create", "a: "+patched(2, 0))
		metricstest.Want(t, r.registry, 3, "quartet_events_sent_total")
		delete(r.here, "a") // the API server has removed it
		r.Send(event("a", 3))
		r.want(0, "a: create", "b: create", "a: "+patched(2, 0), "a: create")
		metricstest.Documented(t, r.registry, metricstest.EventsInCluster)
	})
}

func TestALostAnswerMakesNoSecondEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.here["a"] = event("a", 1)
		r.Send(event("a", 1))
		r.want(0, "a: "+patched(1, 0))
	})
}

// TestMissedEventsAreSentToTheAPIServerInOrder: each event is sent once, in its last state, in the order of the
// last occurrence.
func TestMissedEventsAreSentToTheAPIServerInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.fails(func(string) error { return errAway })
		for count := range int32(500) {
			r.Send(event("a", count+1))
		}
		r.Send(event("b", 1))
		r.Send(event("c", 1))
		r.want(20 * time.Minute)
		r.Send(event("b", 2))
		if got := r.Waiting(); got != 3 {
			t.Errorf("%d wait, want 3", got)
		}
		metricstest.Want(t, r.registry, 3, "quartet_events_waiting")
		r.mu.Lock()
		if r.requests > 60 {
			t.Errorf("it was asked %d times in 20 minutes", r.requests)
		}
		r.mu.Unlock()
		r.recovers()
		r.want(time.Minute, "a: create", "c: create", "b: create")
		if log := r.log.String(); strings.Count(log, "\n") != 2 ||
			!strings.Contains(log, "events wait until it accepts them") ||
			!strings.Contains(log, "accepts events again") {
			t.Errorf("the log is\n%s\nwant %q 2 times, with %q and with %q",
				log, "\n", "events wait until it accepts them", "accepts events again")
		}
	})
}

func TestWhatWaitsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.fails(func(string) error { return errAway })
		for i := range 3000 {
			r.Send(event(fmt.Sprint(i), 1))
		}
		synctest.Wait()
		if got := r.Waiting(); got != 1000 {
			t.Errorf("%d wait, want 1000", got)
		}
		r.recovers()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's time
		synctest.Wait()
		if len(r.sent) != 1000 || r.sent[0] != "2000: create" || r.sent[999] != "2999: create" {
			t.Errorf("%d are told, from %s to %s; want the last 1000", len(r.sent), r.sent[0], r.sent[len(r.sent)-1])
		}
		r.dropped("queue_full", 2000)
	})
}

func TestExpiredEventsAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.fails(func(string) error { return errAway })
		r.Send(event("old", 1))
		r.want(50 * time.Minute)
		r.Send(event("new", 1))
		r.want(11 * time.Minute)
		r.recovers()
		r.want(time.Minute, "new: create")
		r.dropped("expired", 1)
	})
}

// TestAnEventThatIsRefusedDelaysNoOther: an event with a permanent error is dropped at once, one with a possibly
// temporary error after some tries.
func TestAnEventThatIsRefusedDelaysNoOther(t *testing.T) {
	terminating := apierrors.NewForbidden(resource, "bad", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: v1.NamespaceTerminatingCause}}
	for name, test := range map[string]struct {
		err   error
		after time.Duration
	}{
		"invalid":                {apierrors.NewBadRequest("no"), 0},
		"namespace is gone":      {apierrors.NewNotFound(resource, "ns"), 0},
		"namespace is going":     {terminating, 0},
		"internal error":         {apierrors.NewInternalError(errors.New("oh")), time.Minute},
		"not allowed to do so":   {apierrors.NewForbidden(resource, "bad", nil), time.Minute},
		"no answer that we know": {&apierrors.StatusError{ErrStatus: metav1.Status{Code: 418}}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t)
				r.fails(func(name string) error {
					if name == "bad" {
						return test.err
					}
					return nil
				})
				r.Send(event("bad", 1))
				r.Send(event("good", 1))
				r.want(test.after, "good: create")
				r.dropped("refused", 1)
				if !strings.Contains(r.log.String(), "it is not sent again") {
					t.Errorf("the log is\n%s\nwant text with %q", r.log.String(), "it is not sent again")
				}
			})
		})
	}
}

// TestTheAPIServerIsLeftAloneForAsLongAsItAsks checks that the sender respects Retry-After and loses no event.
func TestTheAPIServerIsLeftAloneForAsLongAsItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		r.fails(func(string) error { return apierrors.NewTooManyRequests("too much", 20) })
		r.Send(event("a", 1))
		synctest.Wait()
		r.recovers()
		r.want(19 * time.Second)
		r.want(2*time.Second, "a: create")
		for range 10 {
			r.fails(func(string) error { return apierrors.NewTooManyRequests("too much", 1) })
			r.Send(event("b", 1))
			time.Sleep(10 * time.Minute) //nolint:forbidigo // the bubble's time
		}
		r.recovers()
		r.want(time.Minute, "a: create", "b: create")
		r.dropped("refused", 0)
	})
}
