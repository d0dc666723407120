package engineapi_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/shutdown"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// images is a fake image service with a fixed list or an error.
type images struct {
	internalapi.ImageManagerService
	list []*runtimeapi.Image
	err  error
}

func (i *images) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	return i.list, i.err
}

type rig struct {
	node     *fakenode.Node
	store    *podstore.Store
	pool     *podworkers.Pool
	book     *evictionbook.Book
	images   *images
	bookFile string
	health   loop.Health
	// unsent is the number of pods whose status the API server does not have.
	unsent atomic.Int64
	// storage is nil while it is not known.
	storage atomic.Pointer[stream.Level[*enginev1.StorageItem]]
	client  enginev1.EngineServiceClient
}

// start serves the API on a real socket.
func start(t *testing.T) *rig {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	logger, tracer := slog.New(slog.DiscardHandler), noop.NewTracerProvider().Tracer("")
	dir := t.TempDir()
	r := &rig{node: fakenode.New(), images: &images{}}
	r.bookFile = filepath.Join(dir, "evictions.json")
	r.book = evictionbook.Open(evictionbook.Config{Path: r.bookFile, Clock: clock.RealClock{}, Logger: logger})
	t.Cleanup(func() {
		if err := r.book.Close(); err != nil {
			t.Error(err)
		}
	})
	r.store = podstore.New(podstore.Config{
		API: statusmanager.None{}, Clock: clock.RealClock{}, Tracer: tracer, Logger: logger,
	})
	r.pool = podworkers.NewPool(ctx, podworkers.Config{
		Runtime: r.node, Observer: r.node, Statuses: r.store, Endings: gracebook.InMemory(boottime.Now),
		Clock: clock.RealClock{}, BootTime: boottime.Now,
		Tracer: tracer, Logger: logger, Resync: time.Minute,
	})
	events := podevents.New(podevents.Config{NodeName: "node-1", Clock: clock.RealClock{}, Logger: logger})
	t.Cleanup(events.Close)
	server := engineapi.New(engineapi.Config{
		Store: r.store, Workers: r.pool, Probes: func(uid types.UID) []*enginev1.Probe { return []*enginev1.Probe{{Container: "of " + string(uid)}} }, Health: func() loop.Health { return r.health }, Events: events.Stream(),
		Evicter: &engineapi.Evictions{
			Book: r.book, Store: r.store, Workers: r.pool, Metrics: engineapi.NewMetrics(nil), Events: events,
		},
		Shutdown: shutdown.New(shutdown.Config{
			Store: r.store, Book: r.book, Workers: r.pool, Boot: "this one", Unsent: func() int { return int(r.unsent.Load()) }, Clock: clock.RealClock{},
		}),
		Images: func() (internalapi.ImageManagerService, error) { return r.images, nil },
		AllVolumes: func() []*enginev1.PodVolume {
			volume := func(name string) *enginev1.Volume { return &enginev1.Volume{Name: name} }
			return []*enginev1.PodVolume{
				{PodUid: "gone", Volume: volume("left")}, {PodUid: "u1", Volume: volume("found")},
				{PodUid: "u2", Namespace: "default", Pod: "b", Volume: volume("second")},
				{PodUid: "u2", Namespace: "default", Pod: "b", Volume: volume("first")},
			}
		},
		Claims: func() []*enginev1.Claim { return []*enginev1.Claim{{UsedBy: []string{"default/a"}}} },
		Released: func() []*enginev1.ReleasedVolume {
			return []*enginev1.ReleasedVolume{{PersistentVolume: []byte("pv"), Problem: "it hangs"}}
		},
		Forget: func(_ context.Context, name string) (driver, handle string, err error) {
			switch name {
			case "pvc-1":
				return "disks", "vol-1", nil
			case "pvc-2":
				return "", "", errors.New("it is the volume of the claim shop/data: delete the claim")
			}
			return "", "", engineapi.ErrNoVolume
		},
		Resources: r.resources,
		Unused:    func() []*enginev1.Volume { return []*enginev1.Volume{{Name: "staged"}} },
		Storage: func() (stream.Source[*enginev1.StorageItem], error) {
			if level := r.storage.Load(); level != nil {
				return level, nil
			}
			return nil, errors.New("the volumes in use are not known yet")
		},
	})
	address := "unix://" + filepath.Join(dir, "s.sock")
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: address, Health: rpc.NewHealth(), Ready: func() { close(ready) },
			Register: func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, server) },
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	conn, err := rpc.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	r.client = enginev1.NewEngineServiceClient(conn)
	t.Cleanup(func() {
		cancel()
		r.store.Close()
		r.pool.Wait()
		if err := errors.Join(conn.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
	return r
}

// run starts a pod and adds it to the store.
func (r *rig) run(t *testing.T, uid, name string) {
	t.Helper()
	pod := fakenode.Pod(uid, name, v1.RestartPolicyAlways)
	r.store.SetPod(pod, "file", "")
	r.pool.Want(pod, podworkers.Cause{Kind: podworkers.CauseConfig}, nil)
	eventually.That(t, name+" runs", func() bool { return slices.Contains(r.node.Running(), name) })
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
}

func TestPodsAreUnavailableBeforeTheyAreKnown(t *testing.T) {
	r := start(t)
	_, err := r.client.ListPods(t.Context(), &enginev1.ListPodsRequest{})
	wantCode(t, err, codes.Unavailable)
	watch, err := r.client.WatchPods(t.Context(), &enginev1.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = watch.Recv()
	wantCode(t, err, codes.Unavailable)
}

func TestPodsAndWorkersAreListedInOrder(t *testing.T) {
	r := start(t)
	r.store.Open()
	r.store.SetWaiting("")
	r.run(t, "u2", "b")
	r.run(t, "u1", "a")
	pods, err := r.client.ListPods(t.Context(), &enginev1.ListPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pods.GetPods() {
		var pod v1.Pod
		if err := pod.Unmarshal(p.GetPod()); err != nil {
			t.Fatal(err)
		}
		names = append(names, pod.Name)
	}
	workers, err := r.client.ListWorkers(t.Context(), &enginev1.ListWorkersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers.GetWorkers() {
		names = append(names, w.GetName())
		if probes := w.GetProbes(); len(probes) != 1 || probes[0].GetContainer() != "of "+w.GetPodUid() {
			t.Errorf("%s has the probes %v, want exactly one and probes[0].Container %v",
				w.GetName(), probes, "of "+w.GetPodUid())
		}
		if w.GetState() != enginev1.WorkerState_WORKER_STATE_SYNCING {
			t.Errorf("%s is %v, want %v", w.GetName(), w.GetState(), enginev1.WorkerState_WORKER_STATE_SYNCING)
		}
	}
	if want := []string{"a", "b", "a", "b"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
}

func TestWatchTellsTheSnapshotItsEndAndChanges(t *testing.T) {
	r := start(t)
	r.store.Open()
	r.store.SetWaiting("")
	r.run(t, "u1", "a")
	watch, err := r.client.WatchPods(t.Context(), &enginev1.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []streamv1.Kind{
		streamv1.Kind_KIND_OPENED, streamv1.Kind_KIND_SNAPSHOT, streamv1.Kind_KIND_SYNCED,
	} {
		m, err := watch.Recv()
		if err != nil || m.GetFrame().GetKind() != want {
			t.Fatalf("got %v, %v; want %v", m.GetFrame().GetKind(), err, want)
		}
	}
	r.store.Unwant("u1")
	r.pool.End("u1", podworkers.Cause{}, podworkers.End{Removed: true})
	for {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetFrame().GetRemoved() {
			break
		}
	}
}

func TestStorageIsWatchedOnceItIsKnown(t *testing.T) {
	r := start(t)
	watch, err := r.client.WatchStorage(t.Context(), &enginev1.WatchStorageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = watch.Recv()
	wantCode(t, err, codes.Unavailable)
	level := stream.NewLevel[*enginev1.StorageItem](stream.Config{})
	defer level.Close()
	level.Put("driver/d", &enginev1.StorageItem{Driver: &enginev1.CSIDriver{Name: "d", NodeId: "n"}})
	r.storage.Store(level)
	if watch, err = r.client.WatchStorage(t.Context(), &enginev1.WatchStorageRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []streamv1.Kind{
		streamv1.Kind_KIND_OPENED, streamv1.Kind_KIND_SNAPSHOT, streamv1.Kind_KIND_SYNCED,
	} {
		m, err := watch.Recv()
		if err != nil || m.GetFrame().GetKind() != want {
			t.Fatalf("got %v, %v; want %v", m.GetFrame().GetKind(), err, want)
		}
		if want == streamv1.Kind_KIND_SNAPSHOT && m.GetItem().GetDriver().GetNodeId() != "n" {
			t.Errorf("the item is %v", m.GetItem())
		}
	}
}

func TestEvictedPodIsStoppedFailedAndKept(t *testing.T) {
	r := start(t)
	r.store.Open()
	r.store.SetWaiting("")
	r.run(t, "u1", "a")
	_, err := r.client.EvictPod(t.Context(), &enginev1.EvictPodRequest{PodUid: "u1", Message: "memory"})
	wantCode(t, err, codes.InvalidArgument)
	_, err = r.client.EvictPod(t.Context(), &enginev1.EvictPodRequest{PodUid: "u9", Reason: "Evicted"})
	wantCode(t, err, codes.NotFound)
	if _, err := r.client.EvictPod(t.Context(), &enginev1.EvictPodRequest{PodUid: "u1", Reason: "Evicted", Message: "memory", GracePeriodSeconds: 4}); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "a is stopped", func() bool { return len(r.node.Running()) == 0 })
	if !slices.Contains(r.node.Calls(), "kill a 4") {
		t.Errorf("calls: %v, want %q among them", r.node.Calls(), "kill a 4")
	}
	pods, err := r.store.Pods()
	if err != nil || len(pods) != 1 || pods[0].Status.Phase != v1.PodFailed || pods[0].Status.Reason != "Evicted" ||
		pods[0].Status.Message != "memory" {
		t.Errorf("Pods() = %v, %v, want exactly one, pods[0].Status.Phase %v, pods[0].Status.Reason %q and pods[0].Status.Message %q",
			pods, err, v1.PodFailed, "Evicted", "memory")
	}
	if _, ok := r.book.Get("u1"); !ok {
		t.Error("a restart would start it again")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	watch, err := r.client.WatchPodEvents(ctx, &enginev1.WatchPodEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.GetFrame().GetKind() != streamv1.Kind_KIND_SNAPSHOT {
			continue
		}
		event := &v1.Event{}
		if err := event.Unmarshal(m.GetEvent().GetEvent()); err != nil || event.Type != v1.EventTypeWarning ||
			event.Reason != "Evicted" || event.Message != "memory" {
			t.Errorf("event %v, error %v, want Type %v, Reason %q and Message %q",
				event, err, v1.EventTypeWarning, "Evicted", "memory")
		}
		break
	}
}

// lastEvent is the last event of a pod.
type lastEvent struct{ text string }

func (e *lastEvent) AnnotatedWarning(_ context.Context, pod *v1.Pod, _, reason, message string, _ map[string]string) {
	e.text = pod.Name + " " + reason + " " + message
}

func TestARejectedPodIsFailedForGood(t *testing.T) {
	r := start(t)
	r.store.Open()
	r.store.SetWaiting("")
	r.run(t, "u1", "a")
	var event lastEvent
	evictions := engineapi.Evictions{
		Book: r.book, Store: r.store, Workers: r.pool, Metrics: engineapi.NewMetrics(nil), Events: &event,
	}
	if err := evictions.Reject(t.Context(), "u9", "Limit", "no place"); !errors.Is(err, podstore.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if err := evictions.Reject(t.Context(), "u1", "Limit", "no place"); err != nil {
		t.Fatal(err)
	}
	eventually.That(t, "a is stopped", func() bool { return len(r.node.Running()) == 0 })
	pods, err := r.store.Pods()
	if err != nil || len(pods) != 1 {
		t.Fatalf("Pods() = %v, %v, want exactly one", pods, err)
	}
	got := pods[0].Status
	if got.Phase != v1.PodFailed || got.Reason != "Limit" || got.Message != "Pod was rejected: no place" {
		t.Errorf("the status is %s, %s: %q, want %s, %q and %q",
			got.Phase, got.Reason, got.Message, v1.PodFailed, "Limit", "Pod was rejected: no place")
	}
	if want := pods[0].Name + " Limit no place"; event.text != want {
		t.Errorf("the event is %q, want %q", event.text, want)
	}
	if _, ok := r.book.Get("u1"); !ok {
		t.Error("a restart would start it again")
	}
}

func TestImagesAreTheRuntimesLargestFirst(t *testing.T) {
	r := start(t)
	r.images.list = []*runtimeapi.Image{
		{Id: "small", Size: 1, RepoTags: []string{"t"}, RepoDigests: []string{"d"}},
		{Id: "large", Size: 2, Pinned: true},
	}
	got, err := r.client.ListImages(t.Context(), &enginev1.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	list := got.GetImages()
	if len(list) != 2 || list[0].GetId() != "large" || !list[0].GetPinned() || !slices.Equal(list[1].GetNames(), []string{"t", "d"}) {
		t.Errorf("GetImages() = %v, want 2 entries, list[0].Id %q, Pinned true and list[1].Names %v",
			list, "large", []string{"t", "d"})
	}
	r.images.err = errors.New("the runtime is away")
	_, err = r.client.ListImages(t.Context(), &enginev1.ListImagesRequest{})
	wantCode(t, err, codes.Unavailable)
}

func TestVolumesAreListedByPodsAndThoseWithoutLast(t *testing.T) {
	r := start(t)
	r.run(t, "u1", "a")
	answer, err := r.client.ListVolumes(t.Context(), &enginev1.ListVolumesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range answer.GetVolumes() {
		got = append(got, v.GetPodUid()+" "+v.GetNamespace()+"/"+v.GetPod()+" "+v.GetVolume().GetName())
	}
	want := []string{"gone / left", "u1 default/a found", "u2 default/b first", "u2 default/b second", " / staged"}
	if !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
}

func TestTheVolumesOfDeletedClaimsAreListedAndForgotten(t *testing.T) {
	r := start(t)
	answer, err := r.client.ListClaims(t.Context(), &enginev1.ListClaimsRequest{})
	if err != nil || len(answer.GetClaims()) != 1 || len(answer.GetReleased()) != 1 ||
		string(answer.GetReleased()[0].GetPersistentVolume()) != "pv" || answer.GetReleased()[0].GetProblem() != "it hangs" {
		t.Errorf("listed are %v, %v", answer, err)
	}
	for name, want := range map[string]codes.Code{
		"pvc-1": codes.OK, "pvc-2": codes.FailedPrecondition, "pvc-3": codes.NotFound,
	} {
		request := &enginev1.DeleteReleasedVolumeRequest{Name: name}
		answer, err := r.client.DeleteReleasedVolume(t.Context(), request)
		if status.Code(err) != want || err == nil && (answer.GetDriver() != "disks" || answer.GetHandle() != "vol-1") {
			t.Errorf("%s: %v, %v; want %v", name, answer, err, want)
		}
	}
}

func TestHealthIsTheLoops(t *testing.T) {
	r := start(t)
	at := time.Unix(1_700_000_000, 0)
	r.health = loop.Health{Healthy: true, Reasons: []string{"waiting for pleg"}, LastTurn: at, ConfigMux: "configmux is away"}
	got, err := r.client.GetHealth(t.Context(), &enginev1.GetHealthRequest{})
	if err != nil || !got.GetHealthy() || !slices.Equal(got.GetReasons(), r.health.Reasons) ||
		!got.GetLastTurnAt().AsTime().Equal(at) || got.GetConfigmuxAway() != "configmux is away" {
		t.Errorf("got %v, %v", got, err)
	}
}
