package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// process is configmux on a directory of manifests, behind a real socket.
type process struct {
	t      testing.TB
	dir    string
	cfg    nodeconfig.Config
	client configv1.ConfigServiceClient
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	done   chan error
}

func newProcess(t testing.TB) *process {
	t.Helper()
	root := t.TempDir()
	p := &process{t: t, dir: filepath.Join(root, "manifests")}
	must(t, os.Mkdir(p.dir, 0o700))
	p.cfg = nodeconfig.Config{
		NodeName: "node", StateDir: filepath.Join(root, "state"), Listen: "unix://" + filepath.Join(root, "s.sock"),
	}
	p.cfg.Kubelet.StaticPodPath = p.dir
	p.cfg.Kubelet.FileCheckFrequency.Duration = time.Hour
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
	go func() { p.done <- run(ctx, p.cfg, quiet()) }()
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
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s%s}\nspec: {containers: [{name: c, image: %s}]}\n", name, uid, image)
}

// watch opens a stream and returns what reads it.
func (p *process) watch(token []byte) func() *configv1.WatchPodUpdatesResponse {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	p.t.Cleanup(cancel)
	out, err := p.client.WatchPodUpdates(ctx, &configv1.WatchPodUpdatesRequest{ResumeToken: token}, grpc.WaitForReady(true))
	must(p.t, err)
	return func() *configv1.WatchPodUpdatesResponse {
		p.t.Helper()
		m, err := out.Recv()
		must(p.t, err)
		return m
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
		return fmt.Sprintf("%s %s %s %s", kind, strings.TrimPrefix(m.GetPod().GetOp().String(), "OP_"), pod.Name, pod.Spec.Containers[0].Image)
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

// ready waits until the source has spoken.
func (p *process) ready() {
	p.t.Helper()
	next := p.watch(nil)
	for m := next(); !m.GetSource().GetReady(); m = next() {
	}
}

func TestFromManifestToStream(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	next := p.watch(nil)
	expect(t, next, "OPENED", "SNAPSHOT source file ready=true", "SYNCED")

	p.write("a.yaml", manifest("a", "a1", "i:1"))
	expect(t, next, "DELTA ADD a-node i:1", "DELTA source file ready=true")
	p.write("a.yaml", manifest("a", "a1", "i:2"))
	expect(t, next, "DELTA UPDATE a-node i:2", "DELTA source file ready=true")
	must(t, os.Remove(filepath.Join(p.dir, "a.yaml")))
	expect(t, next, "DELTA REMOVE a-node i:2", "DELTA source file ready=true")

	// Without a UID of its own a changed manifest is another pod, and the old one makes room first.
	p.write("b.yaml", manifest("b", "", "i:1"))
	expect(t, next, "DELTA ADD b-node i:1", "DELTA source file ready=true")
	p.write("b.yaml", manifest("b", "", "i:2"))
	expect(t, next, "DELTA REMOVE b-node i:1", "DELTA ADD b-node i:2", "DELTA source file ready=true")
}

func TestPodsOfTheFirstReadingComeBeforeTheirSource(t *testing.T) {
	p := newProcess(t)
	for i := range 20 {
		p.write(fmt.Sprintf("%02d.yaml", i), manifest(fmt.Sprintf("p%02d", i), "", "i"))
	}
	p.run()
	// However early the subscriber comes, whoever has seen the source ready has seen all its pods.
	next, pods := p.watch(nil), 0
	for m := next(); !m.GetSource().GetReady(); m = next() {
		if m.GetPod() != nil {
			pods++
		}
	}
	if pods != 20 {
		t.Errorf("%d pods came before their source was ready, want 20", pods)
	}
}

func TestResumeGivesOnlyWhatWasMissed(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "a1", "i:1"))
	p.write("b.yaml", manifest("b", "b1", "i:1"))
	p.run()
	p.ready()
	token := expect(t, p.watch(nil), "OPENED", "SNAPSHOT ADD a-node i:1", "SNAPSHOT ADD b-node i:1",
		"SNAPSHOT source file ready=true", "SYNCED")
	follow := p.watch(token)
	expect(t, follow, "OPENED")
	p.write("a.yaml", manifest("a", "a1", "i:2"))
	expect(t, follow, "DELTA UPDATE a-node i:2", "DELTA source file ready=true")
	must(t, os.Remove(filepath.Join(p.dir, "b.yaml")))
	expect(t, follow, "DELTA REMOVE b-node i:1", "DELTA source file ready=true")

	again := p.watch(token)
	if m := again(); m.GetFrame().GetOpening().GetStart() != streamv1.Start_START_RESUMED {
		t.Errorf("start %v, want RESUMED", m.GetFrame().GetOpening().GetStart())
	}
	expect(t, again, "DELTA UPDATE a-node i:2", "DELTA REMOVE b-node i:1", "DELTA source file ready=true")
}

// A subscriber that lives through restarts sees each change once, and none that did not happen.
func TestARestartChangesNothingForAFollower(t *testing.T) {
	p := newProcess(t)
	p.write("a.yaml", manifest("a", "", "i:1"))
	p.write("b.yaml", manifest("b", "b1", "i:1"))
	p.run()
	f := follow(p)
	f.until("ADD a-node i:1", "ADD b-node i:1")

	p.stop()
	p.run()
	f.untilSynced(2)
	p.stop()
	p.write("a.yaml", manifest("a", "", "i:2"))
	p.write("b.yaml", manifest("b", "b1", "i:2"))
	p.run()
	f.until("ADD a-node i:1", "ADD b-node i:1", "UPDATE b-node i:2", "ADD a-node i:2", "REMOVE a-node i:1")
}

// follower is a subscriber as syncloop is one.
type follower struct {
	t       testing.TB
	mu      sync.Mutex
	changes []string
	synced  int
	news    chan struct{}
}

func follow(p *process) *follower {
	f := &follower{t: p.t, news: make(chan struct{}, 1)}
	src := streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*configv1.WatchPodUpdatesResponse], error) {
		out, err := p.client.WatchPodUpdates(ctx, &configv1.WatchPodUpdatesRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *configv1.WatchPodUpdatesResponse, error) {
			m, err := out.Recv()
			return m.GetFrame(), m, err
		}, nil
	})
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
	p.t.Cleanup(func() { cancel(); <-done })
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

func TestABadFileBesideAGoodOneIsListed(t *testing.T) {
	p := newProcess(t)
	p.write("good.yaml", manifest("good", "", "i:1"))
	p.write("bad.yaml", manifest("bad", "", "''"))
	p.run()
	p.ready()
	pods, err := p.client.ListPods(t.Context(), &configv1.ListPodsRequest{})
	must(t, err)
	if len(pods.GetPods()) != 1 || pods.GetPods()[0].GetSource() != "file" || pods.GetPods()[0].GetOp() != configv1.Op_OP_ADD {
		t.Fatalf("pods %v, want the good one", pods.GetPods())
	}
	if name := decode(t, pods.GetPods()[0]).Name; name != "good-node" {
		t.Errorf("pod %s, want good-node", name)
	}
	listed, err := p.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
	must(t, err)
	if len(listed.GetSources()) != 1 {
		t.Fatalf("sources %v", listed.GetSources())
	}
	s := listed.GetSources()[0]
	if s.GetName() != "file" || s.GetTarget() != p.dir || !s.GetReady() || s.GetPods() != 1 || s.GetMode() != "inotify" || s.GetLastReadAt() == nil {
		t.Errorf("source %v", s)
	}
	if len(s.GetErrors()) != 1 {
		t.Fatalf("errors %v", s.GetErrors())
	}
	e := s.GetErrors()[0]
	if e.GetPath() != filepath.Join(p.dir, "bad.yaml") || e.GetPod() != "default/bad-node" ||
		e.GetField() != "spec.containers[0].image" || e.GetCount() != 1 || e.GetFirstSeenAt() == nil {
		t.Errorf("error %v", e)
	}
}

func TestSourcesThatAreNotThereAreUnimplemented(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	_, apply := p.client.ApplyPod(t.Context(), &configv1.ApplyPodRequest{})
	_, remove := p.client.DeletePod(t.Context(), &configv1.DeletePodRequest{})
	if status.Code(apply) != codes.Unimplemented || status.Code(remove) != codes.Unimplemented {
		t.Errorf("ApplyPod: %v, DeletePod: %v, want UNIMPLEMENTED", apply, remove)
	}
}

func TestHealthWaitsForTheFirstReadingOnly(t *testing.T) {
	p := newProcess(t)
	p.cfg.Kubelet.StaticPodPath = filepath.Join(p.dir, "loop")
	must(t, os.Symlink("loop", p.cfg.Kubelet.StaticPodPath)) // it cannot be read, so it cannot have spoken
	p.run()
	health := grpc_health_v1.NewHealthClient(p.conn)
	check := func(service string) grpc_health_v1.HealthCheckResponse_ServingStatus {
		t.Helper()
		got, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		must(t, err)
		return got.GetStatus()
	}
	if got := check(""); got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("the process is %v, want SERVING from the start", got)
	}
	if got := check("source/file"); got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("the source is %v, want NOT_SERVING", got)
	}
	must(t, os.Remove(p.cfg.Kubelet.StaticPodPath))
	p.ready()
	if got := check("source/file"); got != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("the source is %v, want SERVING", got)
	}
}

func TestTwoOnOneStateDirectory(t *testing.T) {
	p := newProcess(t)
	p.run()
	p.ready()
	err := run(t.Context(), p.cfg, quiet())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("configmux with pid %d", os.Getpid())) {
		t.Errorf("the second one: %v, want an error that names the holder", err)
	}
}

func TestANodeWithoutSourcesIsSynced(t *testing.T) {
	p := newProcess(t)
	p.cfg.Kubelet.StaticPodPath = ""
	p.run()
	expect(t, p.watch(nil), "OPENED", "SYNCED")
}
