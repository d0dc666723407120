package show

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	clocktesting "k8s.io/utils/clock/testing"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) {
	// Times are printed in the local zone.
	time.Local = time.UTC
	goleak.VerifyTestMain(m)
}

// now is the current time of every test.
var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

type fakeEngine struct {
	enginev1.UnimplementedEngineServiceServer
	pods     *stream.Level[*enginev1.Pod]
	events   *stream.Level[*enginev1.PodEvent]
	mu       sync.Mutex
	workers  []*enginev1.Worker
	claims   []*enginev1.Claim
	released []*enginev1.ReleasedVolume
	volumes  []*enginev1.PodVolume
	images   []*enginev1.Image
	// resources are those of the pods.
	resources podresourcesv1.ListPodResourcesResponse
}

func (f *fakeEngine) ListPodResources(
	context.Context, *enginev1.ListPodResourcesRequest,
) (*enginev1.ListPodResourcesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, err := proto.Marshal(&f.resources)
	return &enginev1.ListPodResourcesResponse{Resources: data}, err
}

func (f *fakeEngine) WatchPodEvents(
	r *enginev1.WatchPodEventsRequest,
	to grpc.ServerStreamingServer[enginev1.WatchPodEventsResponse],
) error {
	return streamrpc.Serve(
		to.Context(),
		f.events,
		r.GetResumeToken(),
		func(frame *streamv1.Frame, event *enginev1.PodEvent) error {
			return to.Send(&enginev1.WatchPodEventsResponse{Frame: frame, Event: event})
		},
	)
}

func (f *fakeEngine) setWorkers(workers ...*enginev1.Worker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers = workers
}

func (f *fakeEngine) ListWorkers(context.Context, *enginev1.ListWorkersRequest) (*enginev1.ListWorkersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &enginev1.ListWorkersResponse{Workers: f.workers}, nil
}

func (f *fakeEngine) ListPods(context.Context, *enginev1.ListPodsRequest) (*enginev1.ListPodsResponse, error) {
	return &enginev1.ListPodsResponse{Pods: f.pods.List()}, nil
}

func (f *fakeEngine) WatchPods(
	r *enginev1.WatchPodsRequest,
	to grpc.ServerStreamingServer[enginev1.WatchPodsResponse],
) error {
	return streamrpc.Serve(to.Context(), f.pods, r.GetResumeToken(), func(frame *streamv1.Frame, pod *enginev1.Pod) error {
		return to.Send(&enginev1.WatchPodsResponse{Frame: frame, Pod: pod})
	})
}

type fakePLEG struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
	mu       sync.Mutex
	statuses []*lifecyclev1.PodStatus
	events   *stream.Edge[*lifecyclev1.Event]
}

func (f *fakePLEG) set(statuses ...*lifecyclev1.PodStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statuses = statuses
}

func (f *fakePLEG) ListPodStatuses(
	context.Context,
	*lifecyclev1.ListPodStatusesRequest,
) (*lifecyclev1.ListPodStatusesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &lifecyclev1.ListPodStatusesResponse{Statuses: f.statuses}, nil
}

func (f *fakePLEG) GetPodStatus(
	_ context.Context,
	r *lifecyclev1.GetPodStatusRequest,
) (*lifecyclev1.GetPodStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.statuses {
		if s.GetUid() == r.GetUid() {
			return &lifecyclev1.GetPodStatusResponse{Status: s}, nil
		}
	}
	return &lifecyclev1.GetPodStatusResponse{Status: &lifecyclev1.PodStatus{Uid: r.GetUid()}}, nil
}

func (f *fakePLEG) WatchEvents(
	r *lifecyclev1.WatchEventsRequest,
	to grpc.ServerStreamingServer[lifecyclev1.WatchEventsResponse],
) error {
	return streamrpc.Serve(
		to.Context(),
		f.events,
		r.GetResumeToken(),
		func(frame *streamv1.Frame, event *lifecyclev1.Event) error {
			return to.Send(&lifecyclev1.WatchEventsResponse{Frame: frame, Event: event})
		},
	)
}

type fakeConfig struct {
	configv1.UnimplementedConfigServiceServer
	mu      sync.Mutex
	sources []*configv1.Source
	objects []*configv1.ObjectSummary
	// refusal is the error of ListObjects.
	refusal error
	// updates has the messages of the incremental mode, modes those of the others, which are never resumed.
	updates *stream.Level[podUpdates]
	modes   map[configv1.Mode]*stream.Level[podUpdates]
}

// anew is a stream that begins with a snapshot for any token.
type anew struct{ stream.Source[podUpdates] }

func (a anew) Subscribe(ctx context.Context, token []byte) (stream.Subscription[podUpdates], error) {
	sub, err := a.Source.Subscribe(ctx, nil)
	if err != nil || len(token) == 0 {
		return sub, err
	}
	return compacted{sub}, nil
}

type compacted struct {
	stream.Subscription[podUpdates]
}

func (c compacted) Next(ctx context.Context) (stream.Message[podUpdates], error) {
	m, err := c.Subscription.Next(ctx)
	if m.Kind == stream.KindOpened {
		m.Start = stream.StartSnapshotCompacted
	}
	return m, err
}

func (f *fakeConfig) WatchPodUpdates(
	r *configv1.WatchPodUpdatesRequest,
	to grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse],
) error {
	var source stream.Source[podUpdates] = f.updates
	if r.GetMode() != configv1.Mode_MODE_INCREMENTAL {
		level := f.modes[r.GetMode()]
		if level == nil {
			return status.Errorf(codes.InvalidArgument, "mode: %s is not expected", r.GetMode())
		}
		source = anew{level}
	}
	return streamrpc.Serve(to.Context(), source, r.GetResumeToken(), func(frame *streamv1.Frame, m podUpdates) error {
		return to.Send(&configv1.WatchPodUpdatesResponse{Frame: frame, Payload: m.GetPayload()})
	})
}

func (f *fakeConfig) set(sources ...*configv1.Source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sources = sources
}

func (f *fakeConfig) ListSources(context.Context, *configv1.ListSourcesRequest) (*configv1.ListSourcesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &configv1.ListSourcesResponse{Sources: f.sources}, nil
}

type fakeNode struct {
	nodev1.UnimplementedNodeServiceServer
	nodes  *stream.Level[*nodev1.Node]
	events *stream.Level[*enginev1.PodEvent]
}

func (f *fakeNode) GetNode(context.Context, *nodev1.GetNodeRequest) (*nodev1.GetNodeResponse, error) {
	node, ok := f.nodes.Get("node-1")
	if !ok {
		return nil, status.Error(codes.Unavailable, "no Node has been computed yet")
	}
	return &nodev1.GetNodeResponse{Node: node}, nil
}

func (f *fakeNode) WatchNode(
	r *nodev1.WatchNodeRequest,
	to grpc.ServerStreamingServer[nodev1.WatchNodeResponse],
) error {
	return streamrpc.Serve(
		to.Context(),
		f.nodes,
		r.GetResumeToken(),
		func(frame *streamv1.Frame, node *nodev1.Node) error {
			return to.Send(&nodev1.WatchNodeResponse{Frame: frame, Node: node})
		},
	)
}

func (f *fakeNode) put(t *testing.T, node *v1.Node) {
	t.Helper()
	f.putAs(t, node, true, true)
}

// putAs sets the served Node, of a standalone node, or of one whose Node the API server has, or neither.
func (f *fakeNode) putAs(t *testing.T, node *v1.Node, standalone, synced bool) {
	t.Helper()
	data, err := node.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	f.nodes.Put("node-1", &nodev1.Node{Node: data, Synced: synced, Standalone: standalone})
}

// node is the fake services of a node, over the sockets of a state directory.
type node struct {
	t        *testing.T
	stateDir string
	clock    *clocktesting.FakeClock
	engine   *fakeEngine
	pleg     *fakePLEG
	config   *fakeConfig
	node     *fakeNode
}

func newNode(t *testing.T) *node {
	t.Helper()
	// Not t.TempDir: with the name of the test the sockets' paths would be too long.
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &node{
		t:        t,
		stateDir: dir,
		clock:    clocktesting.NewFakeClock(now),
		engine: &fakeEngine{
			pods:   stream.NewLevel[*enginev1.Pod](stream.Config{}),
			events: stream.NewLevel[*enginev1.PodEvent](stream.Config{}),
		},
		pleg: &fakePLEG{events: stream.NewEdge[*lifecyclev1.Event](stream.Config{})},
		config: &fakeConfig{
			updates: stream.NewLevel[podUpdates](stream.Config{}),
			modes:   map[configv1.Mode]*stream.Level[podUpdates]{},
		},
		node: &fakeNode{
			nodes:  stream.NewLevel[*nodev1.Node](stream.Config{}),
			events: stream.NewLevel[*enginev1.PodEvent](stream.Config{}),
		},
	}
}

// serve serves one service until the test ends or stop is called.
func (n *node) serve(service layout.Service) (stop func()) {
	n.t.Helper()
	register := map[layout.Service]func(*grpc.Server){
		layout.ConfigMux:  func(s *grpc.Server) { configv1.RegisterConfigServiceServer(s, n.config) },
		layout.PLEG:       func(s *grpc.Server) { lifecyclev1.RegisterLifecycleServiceServer(s, n.pleg) },
		layout.SyncLoop:   func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, n.engine) },
		layout.NodeStatus: func(s *grpc.Server) { nodev1.RegisterNodeServiceServer(s, n.node) },
	}[service]
	return n.serveAs(service, register)
}

// serveAs serves another implementation in place of a service.
func (n *node) serveAs(service layout.Service, register func(*grpc.Server)) (stop func()) {
	n.t.Helper()
	l, err := layout.New(n.stateDir)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: l.Address(service), Register: register, Health: rpc.NewHealth(),
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Ready: func() { close(ready) },
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		n.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(stop)
	return stop
}

func (n *node) command(args []string, out, errOut io.Writer) *cobra.Command {
	a := &querier{clock: n.clock}
	root := &cobra.Command{Use: "quartet", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(a.getCommand(), a.describeCommand(), a.eventsCommand(), a.updatesCommand(), a.logsCommand())
	// The directory differs in each run, so it is replaced in the output.
	root.SetArgs(append(args, "--state-dir", n.stateDir))
	root.SetOut(out)
	root.SetErr(errOut)
	return root
}

// run runs a command to its end.
func (n *node) run(args ...string) (out, errOut string, err error) {
	n.t.Helper()
	var o, e logbuffer.Buffer
	err = n.command(args, &o, &e).ExecuteContext(n.t.Context())
	return o.String(), e.String(), err
}

// must runs a command that has to succeed, and returns its output.
func (n *node) must(args ...string) string {
	n.t.Helper()
	out, errOut, err := n.run(args...)
	if err != nil {
		n.t.Fatalf("quartet %s: %v", strings.Join(args, " "), err)
	}
	return out + errOut
}

// running is a command in the background.
type running struct {
	t           *testing.T
	out, errOut *logbuffer.Buffer
	stop        func() error
}

// start runs a command until the test ends or it is stopped.
func (n *node) start(args ...string) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: n.t, out: &logbuffer.Buffer{}, errOut: &logbuffer.Buffer{}}
	done := make(chan error, 1)
	cmd := n.command(args, r.out, r.errOut)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	n.t.Cleanup(func() {
		if err := r.stop(); err != nil {
			n.t.Errorf("quartet %s: %v", strings.Join(args, " "), err)
		}
	})
	return r
}

// until waits until a buffer contains a text.
func (r *running) until(b *logbuffer.Buffer, text string) {
	r.t.Helper()
	r.untilTrue(text, func() bool { return strings.Contains(b.String(), text) })
}

// untilTrue waits until a condition holds.
func (r *running) untilTrue(what string, is func() bool) {
	r.t.Helper()
	eventually.Wait{State: func() string { return fmt.Sprintf("have:\n%s\n%s", r.out, r.errOut) }}.That(r.t, what, is)
}

// golden compares an output with a file; trailing spaces of lines are ignored in both.
func golden(t *testing.T, name, got string) {
	t.Helper()
	lines := strings.Split(got, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	got = strings.Join(slices.Clip(lines), "\n")
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
}
