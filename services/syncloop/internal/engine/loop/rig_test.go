package loop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/mirrorpods"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a stream whose publisher can be stopped and replaced.
type peer[V any] struct {
	mu     sync.Mutex
	source stream.Source[V]
}

func (p *peer[V]) set(source stream.Source[V]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.source = source
}

func (p *peer[V]) Subscribe(ctx context.Context, token []byte) (stream.Subscription[V], error) {
	p.mu.Lock()
	source := p.source
	p.mu.Unlock()
	if source == nil {
		return nil, errors.New("no server")
	}
	return source.Subscribe(ctx, token)
}

// eventRecorder records events as text.
type eventRecorder struct {
	mu    sync.Mutex
	lines []string
}

// Normal implements loop.PodEvents.
func (e *eventRecorder) Normal(_ context.Context, pod *v1.Pod, _, reason, _ string) {
	e.note("Normal", pod, reason)
}

// Warning implements loop.PodEvents.
func (e *eventRecorder) Warning(_ context.Context, pod *v1.Pod, _, reason, _ string) {
	e.note("Warning", pod, reason)
}

// AnnotatedWarning implements the events of engineapi.Evictions.
func (e *eventRecorder) AnnotatedWarning(
	ctx context.Context, pod *v1.Pod, container, reason, message string, _ map[string]string,
) {
	e.Warning(ctx, pod, container, reason, message)
}

func (e *eventRecorder) note(kind string, pod *v1.Pod, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines = append(e.lines, kind+" "+reason+" "+pod.Name)
}

func (e *eventRecorder) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.lines)
}

// reports records the reports to an API server.
type reports struct {
	mu  sync.Mutex
	all []podstatus.Report
}

// Report implements podstore.API.
func (r *reports) Report(report podstatus.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, report)
}

// Forget implements podstore.API.
func (*reports) Forget(types.UID) {}

// list returns all reports so far.
func (r *reports) list() []podstatus.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// rig is a loop on a fake machine and a fake clock that runs while the test waits. Everything else is real.
type rig struct {
	t      *testing.T
	node   *fakenode.Node
	config *stream.Level[*loop.Desired]
	// configPeer and plegPeer are the streams that the loop follows.
	configPeer *peer[*loop.Desired]
	plegPeer   *peer[*lifecyclev1.Event]
	clock      *clocktesting.FakeClock
	store      *podstore.Store
	pool       *podworkers.Pool
	loop       *loop.Loop
	spans      *tracetest.SpanRecorder
	tracer     *trace.TracerProvider
	book       *evictionbook.Book
	endings    *gracebook.Book
	resizes    *resizes.Book
	nodes      *stream.Level[*nodev1.Node]
	events     *eventRecorder
	reports    *reports
	probes     *prober.Manager
	// probesFail is true while every probe fails.
	probesFail atomic.Bool
	// begun is the time when the rig was constructed, on its clock.
	begun time.Time
	// messages returns the termination message of a pod; nil if there are none.
	messages atomic.Pointer[func(pod *v1.Pod) string]
	// leftovers are the pods with files on disk.
	leftovers atomic.Pointer[[]*v1.Pod]
	stop      func()
}

// newRig returns a rig whose peers are away, on a node that may have pods already.
func newRig(t *testing.T, node *fakenode.Node, stateDir string) *rig {
	t.Helper()
	return newRigWith(t, node, stateDir, 0)
}

// newRigWith is newRig on a machine that has been up longer by later, with a changed configuration.
func newRigWith(
	t *testing.T, node *fakenode.Node, stateDir string, later time.Duration, change ...func(*loop.Config),
) *rig {
	t.Helper()
	r := &rig{
		t: t, node: node, config: stream.NewLevel[*loop.Desired](stream.Config{}),
		configPeer: &peer[*loop.Desired]{}, plegPeer: &peer[*lifecyclev1.Event]{},
		clock: clocktesting.NewFakeClock(time.Now()), spans: tracetest.NewSpanRecorder(),
	}
	r.begun, r.nodes, r.events = r.clock.Now(), stream.NewLevel[*nodev1.Node](stream.Config{}), &eventRecorder{}
	r.reports = &reports{}
	r.tracer = trace.NewTracerProvider(trace.WithSpanProcessor(r.spans))
	tracer, logger := r.tracer.Tracer("test"), slog.New(slog.DiscardHandler)
	process, end := context.WithCancel(context.Background())
	r.book = evictionbook.Open(evictionbook.Config{
		Path: filepath.Join(stateDir, "evictions.json"), Clock: clock.RealClock{}, Logger: logger,
	})
	t.Cleanup(func() {
		if err := r.book.Close(); err != nil {
			t.Error(err)
		}
	})
	r.endings = gracebook.Open(gracebook.Config{
		Dir: filepath.Join(stateDir, "endings"), Now: func() time.Duration { return boottime.Now() + later }, Logger: logger,
	})
	r.resizes = resizes.Open(filepath.Join(stateDir, "resizes"), "", logger)
	node.SetResizes(r.resizes)
	r.makeProbes(stateDir, tracer, logger)
	r.store = podstore.New(podstore.Config{
		API: r.reports, Probes: r.probes, Messages: r.readMessages, Resizes: r.resizes,
		Clock: r.clock, Tracer: tracer, Logger: logger,
	})
	r.pool = podworkers.NewPool(process, podworkers.Config{
		Runtime: node, Observer: node, Statuses: r.store, Endings: r.endings, Resizes: r.resizes, Events: r.events,
		Clock: r.clock, BootTime: boottime.Now,
		Tracer: tracer, Logger: logger, Resync: time.Minute,
	})
	cfg := loop.Config{
		Desired: r.configPeer, Events: r.plegPeer, Pleg: node, Workers: r.pool, Store: r.store, Evictions: r.book,
		Endings: r.endings, Resizes: r.resizes,
		Node: r.nodes, PodEvents: r.events, Probes: r.probes, Mirrors: mirrorpods.None{},
		PodFromObserved: func(s *lifecyclev1.PodStatus) *v1.Pod {
			return fakenode.Pod(s.GetUid(), s.GetName(), v1.RestartPolicyAlways)
		},
		Leftovers: func() ([]*v1.Pod, error) {
			if pods := r.leftovers.Load(); pods != nil {
				return *pods, nil
			}
			return nil, errors.New("there is no such folder")
		},
		Privileges: privilege.Everything(),
		Clock:      r.clock, Tracer: tracer, Logger: logger, Resync: time.Minute,
	}
	for _, f := range change {
		f(&cfg)
	}
	r.loop = loop.New(cfg)
	done, probed := make(chan error, 1), make(chan error, 1)
	go func() { done <- r.loop.Run(process) }()
	go func() { probed <- r.probes.Run(process) }()
	r.stop = sync.OnceFunc(func() {
		end()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the loop ended with %v, want %v", err, context.Canceled)
		}
		if err := <-probed; !errors.Is(err, context.Canceled) {
			t.Errorf("the probes ended with %v, want %v", err, context.Canceled)
		}
		r.pool.Wait()
		r.store.Close()
	})
	t.Cleanup(func() {
		r.stop()
		for _, rule := range node.Broken() {
			t.Errorf("broken rule: %v", rule)
		}
	})
	return r
}

// readMessages returns the message of the pod for each ended container.
func (r *rig) readMessages(pod *v1.Pod, ended []*lifecyclev1.Container) map[string]string {
	read := r.messages.Load()
	if read == nil {
		return nil
	}
	text, all := (*read)(pod), map[string]string{}
	for _, c := range ended {
		all[c.GetId()] = text
	}
	return all
}

// makeProbes constructs the prober. Its probes return at once.
func (r *rig) makeProbes(stateDir string, tracer oteltrace.Tracer, logger *slog.Logger) {
	r.t.Helper()
	kept := prober.OpenBook(filepath.Join(stateDir, "probes"), logger)
	r.probes = prober.New(prober.Config{
		Probe: func(context.Context, probecalls.Target) probecalls.Answer {
			if r.probesFail.Load() {
				return probecalls.Answer{Outcome: probecalls.Failure}
			}
			return probecalls.Answer{Outcome: probecalls.Success}
		},
		Book: kept, Clock: r.clock, Tracer: tracer, Logger: logger,
	})
}

// start returns a rig whose peers are there. The source "file" is not ready.
func start(t *testing.T, change ...func(*loop.Config)) *rig {
	t.Helper()
	r := newRigWith(t, fakenode.New(), t.TempDir(), 0, change...)
	r.source("file", false)
	r.configPeer.set(r.config)
	r.plegPeer.set(r.node.Events)
	return r
}

func (r *rig) source(name string, ready bool) {
	r.config.Put("source/"+name, &loop.Desired{Source: name, Ready: ready})
}

func (r *rig) add(pod *v1.Pod) {
	r.config.Put(string(pod.UID), &loop.Desired{Pod: pod, Source: "file"})
}

// eventually steps the clock until a condition holds. In a synctest bubble all work of one step is done before the next
// one.
func (r *rig) eventually(what string, holds func() bool) {
	r.t.Helper()
	r.stepUntil(what, 50*time.Millisecond, holds)
}

// pass steps the clock by d. All work that is due by then is done.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	end := r.clock.Now().Add(d)
	r.stepUntil("time passes", max(d/100, 50*time.Millisecond), func() bool { return r.clock.Now().After(end) })
}

func (r *rig) stepUntil(what string, step time.Duration, holds func() bool) {
	r.t.Helper()
	eventually.Wait{
		Interval: time.Millisecond,
		Step:     func() { r.clock.Step(step) },
		State: func() string {
			return fmt.Sprintf("calls: %v, waiting for: %v", r.node.Calls(), r.loop.Health().Reasons)
		},
	}.That(r.t, what, holds)
}

func (r *rig) runs(names ...string) func() bool {
	return func() bool { return slices.Equal(r.node.Running(), names) }
}

func (r *rig) ready(uid string) bool {
	pods, err := r.store.Pods()
	if err != nil {
		return false
	}
	for _, pod := range pods {
		if pod.UID != types.UID(uid) {
			continue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.PodReady {
				return c.Status == v1.ConditionTrue
			}
		}
	}
	return false
}
