package images_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/logbuffer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = time.Minute

// rig is a Puller on a runtime, with its events, log and spans.
type rig struct {
	*images.Puller
	t     testing.TB
	ctx   context.Context
	cri   *fakecri.Server
	clock *clocktesting.FakeClock
	spans *tracetest.SpanRecorder
	log   logbuffer.Buffer

	services func() (internalapi.ImageManagerService, error)

	mu     sync.Mutex
	events []string
}

func newRig(t testing.TB, change ...func(*images.Config)) *rig {
	t.Helper()
	fake := fakecri.New(t)
	r := onRuntime(t, fake.Endpoint(), change...)
	r.cri = fake
	return r
}

func onRuntime(t testing.TB, endpoint string, change ...func(*images.Config)) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	r := &rig{
		t: t, ctx: ctx, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)), spans: tracetest.NewSpanRecorder(),
	}
	service := harness.ConnectCRI(ctx, t, endpoint).Images
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(r.spans)).Tracer("test")
	cfg := images.Config{
		Images: func() (internalapi.ImageManagerService, error) { return service, nil }, Clock: r.clock, Tracer: tracer,
		Calls: cri.NewCaller(tracer, endpoint), Logger: slog.New(slog.NewTextHandler(&r.log, nil)), Events: r,
	}
	for _, f := range change {
		f(&cfg)
	}
	r.Puller, r.services = images.New(cfg), cfg.Images
	return r
}

func serial(cfg *images.Config) { cfg.Serial = true }

// Normal and Warning record events.
func (r *rig) Normal(_ context.Context, pod *v1.Pod, container, reason, message string) {
	r.record("Normal", pod, container, reason, message)
}

func (r *rig) Warning(_ context.Context, pod *v1.Pod, container, reason, message string) {
	r.record("Warning", pod, container, reason, message)
}

func (r *rig) record(kind string, pod *v1.Pod, container, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s %s %s/%s: %s", kind, reason, pod.Name, container, message))
}

// wantEvents compares the events since the last call.
func (r *rig) wantEvents(want ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.events, want) {
		r.t.Errorf("events\n  %s\nwant\n  %s", strings.Join(r.events, "\n  "), strings.Join(want, "\n  "))
	}
	r.events = nil
}

// allOutput returns the whole log, all events and all spans.
func (r *rig) allOutput() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := r.log.String() + strings.Join(r.events, "\n")
	for _, span := range r.spans.Ended() {
		text += fmt.Sprintf("\n%s %v %v", span.Name(), span.Status(), span.Attributes())
		for _, event := range span.Events() {
			text += fmt.Sprintf(" %v", event)
		}
	}
	return text
}

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
}

// ensure requests an image for a pod.
func (r *rig) ensure(podName, image string, policy v1.PullPolicy) (images.Image, error) {
	return r.Ensure(r.ctx, images.Request{Pod: pod(podName), Container: "main", Image: image, Policy: policy})
}

// want requests an image and compares the reason and the message; both are empty on success.
func (r *rig) want(podName, image string, policy v1.PullPolicy, reason, message string) {
	r.t.Helper()
	_, err := r.ensure(podName, image, policy)
	got := ""
	if err != nil {
		got = err.Error()
	}
	want := ""
	if reason != "" {
		want = reason + ": " + message
	}
	if got != want {
		r.t.Errorf("%s of pod %s: %q, want %q", image, podName, got, want)
	}
}
