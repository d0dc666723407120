package configmux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// patience is the time limit of a wait.
const patience = 60 * time.Second

// process is a configmux with a directory of manifests and a real socket.
type process struct {
	t      testing.TB
	dir    string
	cfg    nodeconfig.Config
	tel    *telemetry.Telemetry
	client configv1.ConfigServiceClient
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	done   chan error
}

func newProcess(t testing.TB) *process {
	t.Helper()
	root := t.TempDir()
	p := &process{t: t, dir: filepath.Join(root, "manifests"), tel: quiet()}
	must(t, os.Mkdir(p.dir, 0o700))
	p.cfg = nodeconfig.Config{
		NodeName: "node", StateDir: filepath.Join(root, "state"), Listen: "unix://" + filepath.Join(root, "s.sock"),
		MetricsListen: "unix://" + filepath.Join(root, "m.sock"),
	}
	p.cfg.Kubelet.StaticPodPath = p.dir
	p.cfg.Kubelet.FileCheckFrequency.Duration, p.cfg.Kubelet.MaxPods = time.Hour, 110
	conn, err := rpc.Dial(p.cfg.Listen)
	must(t, err)
	p.conn, p.client = conn, configv1.NewConfigServiceClient(conn)
	t.Cleanup(func() { must(t, conn.Close()) })
	return p
}

// run starts the process; it is stopped at the end of the test.
func (p *process) run() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.done = cancel, make(chan error, 1)
	go func() { p.done <- run(ctx, p.cfg, p.tel) }()
	p.t.Cleanup(p.stop)
}

func (p *process) stop() {
	p.cancel()
	if p.done == nil {
		return
	}
	if err := <-p.done; err != nil {
		p.t.Errorf("run: %v", err)
	}
	p.done = nil
}

func quiet() *telemetry.Telemetry {
	return &telemetry.Telemetry{Logger: slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider().Tracer("")}
}

func (p *process) write(name, content string) {
	p.t.Helper()
	hidden := filepath.Join(p.dir, "."+name)
	must(p.t, os.WriteFile(hidden, []byte(content), 0o600))
	must(p.t, os.Rename(hidden, filepath.Join(p.dir, name)))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func manifest(name, uid, image string) string {
	if uid != "" {
		uid = ", uid: " + uid
	}
	return fmt.Sprintf(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: %s%s}\nspec: {containers: [{name: c, image: %s}]}\n",
		name,
		uid,
		image,
	)
}

// watch opens a stream and returns the function that reads it, without the state of the source "local", which every
// node has.
func (p *process) watch(token []byte) func() *configv1.WatchPodUpdatesResponse {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	p.t.Cleanup(cancel)
	out, err := p.client.WatchPodUpdates(
		ctx,
		&configv1.WatchPodUpdatesRequest{ResumeToken: token},
		grpc.WaitForReady(true),
	)
	must(p.t, err)
	return func() *configv1.WatchPodUpdatesResponse {
		p.t.Helper()
		for {
			m, err := out.Recv()
			must(p.t, err)
			if m.GetSource().GetName() != "local" {
				return m
			}
		}
	}
}

// text says a message in a few words.
func text(t testing.TB, m *configv1.WatchPodUpdatesResponse) string {
	t.Helper()
	kind := strings.TrimPrefix(m.GetFrame().GetKind().String(), "KIND_")
	switch {
	case m.GetSource() != nil:
		return fmt.Sprintf("%s source %s ready=%v", kind, m.GetSource().GetName(), m.GetSource().GetReady())
	case m.GetPod() != nil:
		pod := decode(t, m.GetPod())
		return fmt.Sprintf(
			"%s %s %s %s",
			kind,
			strings.TrimPrefix(m.GetPod().GetOp().String(), "OP_"),
			pod.Name,
			pod.Spec.Containers[0].Image,
		)
	default:
		return kind
	}
}

func decode(t testing.TB, u *configv1.PodUpdate) *v1.Pod {
	t.Helper()
	pod := &v1.Pod{}
	must(t, pod.Unmarshal(u.GetPod()))
	return pod
}

func expect(t testing.TB, next func() *configv1.WatchPodUpdatesResponse, want ...string) (token []byte) {
	t.Helper()
	for _, w := range want {
		m := next()
		if got := text(t, m); got != w {
			t.Fatalf("got %q, want %q", got, w)
		}
		token = m.GetFrame().GetResumeToken()
	}
	return token
}

// ready waits until the source is ready.
func (p *process) ready() {
	p.t.Helper()
	next := p.watch(nil)
	for m := next(); !m.GetSource().GetReady(); m = next() {
	}
}

// span waits for a span to be exported.
func (p *process) span(from *tracetest.InMemoryExporter, in trace.TraceID, id trace.SpanID) tracetest.SpanStub {
	p.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); runtime.Gosched() {
		for _, span := range from.GetSpans() {
			if span.SpanContext.TraceID() == in && span.SpanContext.SpanID() == id {
				return span
			}
		}
	}
	p.t.Fatalf("no span %s in trace %s", id, in)
	return tracetest.SpanStub{}
}

// follower is a subscriber like syncloop.
type follower struct {
	t       testing.TB
	mu      sync.Mutex
	changes []string
	synced  int
	news    chan struct{}
}

func follow(p *process) *follower {
	f := &follower{t: p.t, news: make(chan struct{}, 1)}
	src := streamrpc.NewSource(
		func(ctx context.Context, token []byte) (streamrpc.Receive[*configv1.WatchPodUpdatesResponse], error) {
			out, err := p.client.WatchPodUpdates(ctx, &configv1.WatchPodUpdatesRequest{ResumeToken: token})
			if err != nil {
				return nil, err
			}
			return func() (*streamv1.Frame, *configv1.WatchPodUpdatesResponse, error) {
				m, err := out.Recv()
				return m.GetFrame(), m, err
			}, nil
		},
	)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- stream.Follow(ctx, stream.FollowConfig[*configv1.WatchPodUpdatesResponse]{
			Source: src,
			Equal: func(a, b *configv1.WatchPodUpdatesResponse) bool {
				return a.GetPod() == nil || b.GetPod() == nil || podset.Equal(decode(p.t, a.GetPod()), decode(p.t, b.GetPod()))
			},
			Handle: func(c stream.Change[*configv1.WatchPodUpdatesResponse]) { f.handle(c) },
			Synced: func() { f.note(func() { f.synced++ }) },
			Logger: slog.New(slog.DiscardHandler),
		})
	}()
	p.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) && err != nil {
			p.t.Errorf("Follow() error = %v, want nil or %v", err, context.Canceled)
		}
	})
	return f
}

func (f *follower) handle(c stream.Change[*configv1.WatchPodUpdatesResponse]) {
	which := c.New
	if c.Op == stream.OpRemove {
		which = c.Old
	}
	if which.GetPod() == nil {
		return
	}
	op := map[stream.Op]string{stream.OpAdd: "ADD", stream.OpUpdate: "UPDATE", stream.OpRemove: "REMOVE"}[c.Op]
	pod := decode(f.t, which.GetPod())
	f.note(func() {
		f.changes = append(f.changes, fmt.Sprintf("%s %s %s", op, pod.Name, pod.Spec.Containers[0].Image))
	})
}

func (f *follower) note(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// until waits until exactly these changes were seen, in any order.
func (f *follower) until(want ...string) {
	f.t.Helper()
	slices.Sort(want)
	f.wait(func() bool { return slices.Equal(slices.Sorted(slices.Values(f.changes)), want) })
}

func (f *follower) untilSynced(n int) {
	f.t.Helper()
	f.wait(func() bool { return f.synced >= n })
}

func (f *follower) wait(condition func() bool) {
	f.t.Helper()
	deadline := time.After(patience)
	for {
		f.mu.Lock()
		met, changes, synced := condition(), slices.Clone(f.changes), f.synced
		f.mu.Unlock()
		if met {
			return
		}
		select {
		case <-f.news:
		case <-deadline:
			f.t.Fatalf("changes %q, synced %d times", changes, synced)
		}
	}
}
