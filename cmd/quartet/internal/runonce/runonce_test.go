package runonce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/cmd/quartet/internal/runonce"
	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a configmux with desired pods and a syncloop with their statuses.
type node struct {
	t     *testing.T
	set   *configv1.PodSet
	pods  *stream.Level[*enginev1.Pod]
	clock *clocktesting.FakeClock
	cfg   runonce.Config
}

type configmux struct {
	configv1.UnimplementedConfigServiceServer
	*node
}

type syncloop struct {
	enginev1.UnimplementedEngineServiceServer
	*node
}

// lines is a writer that may be read while it is being written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newNode(t *testing.T, wanted ...string) (*node, *lines) {
	t.Helper()
	n := &node{
		t:     t,
		set:   &configv1.PodSet{},
		pods:  stream.NewLevel[*enginev1.Pod](stream.Config{}),
		clock: clocktesting.NewFakeClock(time.Unix(1000, 0)),
	}
	for _, name := range wanted {
		n.set.Pods = append(n.set.Pods, &configv1.PodUpdate{Pod: n.encode(pod(name))})
	}
	address := "unix://" + filepath.Join(harness.ShortDir(t), "s.sock")
	ctx, stop := context.WithCancel(context.Background())
	served, ready := make(chan error, 1), make(chan struct{})
	go func() {
		served <- rpc.Serve(ctx, rpc.Config{
			Address: address, Health: rpc.NewHealth(), Logger: slog.New(slog.DiscardHandler), Ready: func() { close(ready) },
			Register: func(s *grpc.Server) {
				configv1.RegisterConfigServiceServer(s, configmux{node: n})
				enginev1.RegisterEngineServiceServer(s, syncloop{node: n})
			},
		})
	}()
	conn, err := rpc.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.pods.Close()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-served:
		t.Fatal(err)
	}
	progress := &lines{}
	n.cfg = runonce.Config{ConfigMux: conn, SyncLoop: conn, Clock: n.clock, Progress: progress}
	return n, progress
}

func (n configmux) WatchPodUpdates(
	r *configv1.WatchPodUpdatesRequest,
	to grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse],
) error {
	if r.GetMode() != configv1.Mode_MODE_SNAPSHOT {
		n.t.Errorf("asked for the mode %v, want %v", r.GetMode(), configv1.Mode_MODE_SNAPSHOT)
	}
	for _, m := range []*configv1.WatchPodUpdatesResponse{
		{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_OPENED}},
		{Frame: &streamv1.Frame{Kind: streamv1.Kind_KIND_SNAPSHOT},
			Payload: &configv1.WatchPodUpdatesResponse_Set{Set: n.set}},
	} {
		if err := to.Send(m); err != nil {
			return err
		}
	}
	<-to.Context().Done()
	return nil
}

func (n syncloop) WatchPods(
	r *enginev1.WatchPodsRequest,
	to grpc.ServerStreamingServer[enginev1.WatchPodsResponse],
) error {
	return streamrpc.Serve(to.Context(), n.pods, r.GetResumeToken(), func(frame *streamv1.Frame, pod *enginev1.Pod) error {
		return to.Send(&enginev1.WatchPodsResponse{Frame: frame, Pod: pod})
	})
}

func (n *node) encode(pod *v1.Pod) []byte {
	data, err := pod.Marshal()
	if err != nil {
		n.t.Fatal(err)
	}
	return data
}

// tell sets syncloop's report of a pod.
func (n *node) publish(pod *v1.Pod) {
	n.pods.Put(string(pod.UID), &enginev1.Pod{Pod: n.encode(pod)})
}

func pod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
	}
}

func with(name string, phase v1.PodPhase, state v1.ContainerState) *v1.Pod {
	p := pod(name)
	p.Status = v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{{Name: "main", State: state}}}
	return p
}

var running = v1.ContainerState{Running: &v1.ContainerStateRunning{}}

func format(results []runonce.Result) string {
	var all []string
	for _, r := range results {
		all = append(all, fmt.Sprintf("%s %s %v", r.Pod, r.State, r.Err))
	}
	return strings.Join(all, "\n")
}

func TestItEndsWhenEachPodRunsOrHasEnded(t *testing.T) {
	n, _ := newNode(t, "ended", "failed", "runs")
	n.publish(with("ended", v1.PodSucceeded, v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}))
	n.publish(with("failed", v1.PodFailed, v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 3}}))
	n.publish(with("runs", v1.PodRunning, running))
	results, err := runonce.Run(t.Context(), n.cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := "default/ended Succeeded <nil>\ndefault/failed Failed main ended with the exit code 3\ndefault/runs Running <nil>"
	if got := format(results); got != want {
		t.Errorf("results\n%s\nwant\n%s", got, want)
	}
	var out bytes.Buffer
	if err := runonce.Print(&out, results); err != nil {
		t.Fatal(err)
	}
	table := "NAMESPACE   POD      STATE       REASON\ndefault     ended    Succeeded\ndefault     failed   Failed      main ended with the exit code 3\ndefault     runs     Running\n"
	if out.String() != table {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), table)
	}
	if err := runonce.Failed(results); err == nil ||
		!strings.Contains(err.Error(), "1 of 3 pods do not run: default/failed") {
		t.Errorf("error %v, want it to name the pod", err)
	}
}

// A source that never answered may have any pods, so the running pods of the others are no success.
func TestASourceThatDoesNotAnswerIsAFailure(t *testing.T) {
	n, _ := newNode(t, "runs")
	n.set.Sources = []*configv1.SourceState{{Name: "api"}, {Name: "file", Ready: true}, {Name: "http"}}
	n.publish(with("runs", v1.PodRunning, running))
	results, err := runonce.Run(t.Context(), n.cfg)
	var silent *runonce.UnansweredError
	if !errors.As(err, &silent) || !slices.Equal(silent.Sources, []string{"api", "http"}) {
		t.Errorf("error %v, want the sources that did not answer", err)
	}
	if got, want := format(results), "default/runs Running <nil>"; got != want {
		t.Errorf("results\n%s\nwant\n%s", got, want)
	}
}

func TestAPodThatRunsAfterSomeTriesIsGood(t *testing.T) {
	n, progress := newNode(t, "slow")
	n.publish(
		with(
			"slow",
			v1.PodPending,
			v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}},
		),
	)
	done := make(chan []runonce.Result)
	go func() {
		results, err := runonce.Run(t.Context(), n.cfg)
		if err != nil {
			t.Error(err)
		}
		done <- results
	}()
	// Each failed try is reported.
	eventually.In(t.Context(), t, "it has tried thrice", func() bool {
		if n.clock.HasWaiters() && !strings.Contains(progress.String(), "(try 3 of 10)") {
			n.clock.Step(time.Second)
		}
		return strings.Contains(
			progress.String(),
			"pod default/slow does not run yet: main waits: ErrImagePull: no such image (try 3 of 10)",
		)
	})
	n.publish(with("slow", v1.PodRunning, running))
	if got := format(<-done); got != "default/slow Running <nil>" {
		t.Errorf("results %s, want %q", got, "default/slow Running <nil>")
	}
}

func TestItGivesUpAfterTenTriesInSeventeenMinutes(t *testing.T) {
	n, progress := newNode(t, "stuck")
	n.publish(with("stuck", v1.PodPending, v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}))
	begun := n.clock.Now()
	done := make(chan []runonce.Result)
	go func() {
		results, err := runonce.Run(t.Context(), n.cfg)
		if err != nil {
			t.Error(err)
		}
		done <- results
	}()
	var results []runonce.Result
	for results == nil {
		select {
		case results = <-done:
		case <-time.After(100 * time.Microsecond):
			if n.clock.HasWaiters() {
				n.clock.Step(time.Second)
			}
		}
	}
	if took := n.clock.Since(begun).Round(time.Minute); took != 17*time.Minute {
		t.Errorf("it took %v, want 17 min", took)
	}
	if got := format(results); got != "default/stuck Pending main waits: ImagePullBackOff" ||
		strings.Count(progress.String(), "\n") != 9 {
		t.Errorf("results %s after\n%s", got, progress)
	}
}

func TestANodeWithoutPodsHasNothingToRun(t *testing.T) {
	n, _ := newNode(t)
	results, err := runonce.Run(t.Context(), n.cfg)
	if err != nil || len(results) != 0 || runonce.Failed(results) != nil {
		t.Errorf("Run() = %v, %v, want none and no Failed", results, err)
	}
	var out bytes.Buffer
	if err := runonce.Print(&out, results); err != nil || out.String() != "There is no pod to run.\n" {
		t.Errorf("printed %q, %v, want %q", out.String(), err, "There is no pod to run.\n")
	}
}

func TestItEndsWithItsContext(t *testing.T) {
	n, _ := newNode(t, "stuck")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := runonce.Run(ctx, n.cfg)
		done <- err
	}()
	eventually.In(t.Context(), t, "it waits", n.clock.HasWaiters)
	cancel()
	if err := <-done; err == nil {
		t.Error("no error, want that of the context")
	}
}
