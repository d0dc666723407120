package pleg

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// asPLEG is the environment variable that makes a process of this binary a pleg, which a test can kill.
const asPLEG = "QUARTET_TEST_AS_PLEG"

func TestMain(m *testing.M) {
	if os.Getenv(asPLEG) != "" {
		Main()
	}
	goleak.VerifyTestMain(m)
}

// patience is the time limit of a wait.
const patience = 60 * time.Second

// rig is a pleg in this process, or in a separate one, with its socket.
type rig struct {
	t      *testing.T
	cfg    nodeconfig.Config
	client lifecyclev1.LifecycleServiceClient
	stop   func()
}

// startPLEG runs a pleg against a runtime until the test ends or the rig is stopped.
func startPLEG(t *testing.T, endpoint string) *rig {
	t.Helper()
	r := newRig(t, endpoint)
	r.run()
	return r
}

// newRig returns a rig whose pleg is not started.
func newRig(t *testing.T, endpoint string) *rig {
	t.Helper()
	dir := harness.ShortDir(t)
	cfg := nodeconfig.Config{
		Listen:        "unix://" + filepath.Join(dir, "pleg.sock"),
		StateDir:      dir,
		MetricsListen: "unix://" + filepath.Join(dir, "pleg-metrics.sock"),
	}
	cfg.Kubelet.ContainerRuntimeEndpoint = endpoint
	cfg.Kubelet.RuntimeRequestTimeout.Duration = 2 * time.Minute
	r := &rig{t: t, cfg: cfg, stop: func() {}}
	conn, err := rpc.Dial(cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.stop()
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	r.client = lifecyclev1.NewLifecycleServiceClient(conn)
	return r
}

// spawn starts the rig's pleg as a separate process, which stop ends by SIGKILL.
func (r *rig) spawn() {
	r.t.Helper()
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(
		self,
		"--listen="+r.cfg.Listen,
		"--metrics-listen="+r.cfg.MetricsListen,
		"--state-dir="+r.cfg.StateDir,
		"--container-runtime-endpoint="+r.cfg.Kubelet.ContainerRuntimeEndpoint,
	)
	cmd.Env = append(os.Environ(), asPLEG+"=1")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.stop = sync.OnceFunc(func() {
		if err := cmd.Process.Kill(); err != nil {
			r.t.Error(err)
		}
		err := cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			r.t.Errorf("pleg ended with %v:\n%s", err, log.String())
		}
	})
}

// run starts the rig's pleg, also again after a stop.
func (r *rig) run() { r.runLogging(silent().Logger) }

// runLogging is run with a given logger.
func (r *rig) runLogging(logger *slog.Logger) {
	tel := silent()
	tel.Logger = logger
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, r.cfg, tel) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("pleg ended with %v", err)
		}
	}
}

func silent() *telemetry.Telemetry {
	return &telemetry.Telemetry{Logger: slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider().Tracer("")}
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	r.t.Cleanup(cancel)
	return ctx
}

// synced waits until pleg's state is complete.
func (r *rig) synced() {
	r.t.Helper()
	eventually.That(r.t, "a relist", func() bool {
		_, err := r.client.RequestRelist(r.ctx(), &lifecyclev1.RequestRelistRequest{}, grpc.WaitForReady(true))
		if err != nil && status.Code(err) != codes.Unavailable { // the connection may be that of a pleg that was killed
			r.t.Fatal(err)
		}
		return err == nil
	})
}

// mode waits until pleg is in a relist mode.
func (r *rig) mode(want lifecyclev1.RelistMode) {
	r.t.Helper()
	eventually.That(r.t, "mode "+want.String(), func() bool {
		health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{}, grpc.WaitForReady(true))
		return err == nil && health.GetMode() == want
	})
}

func (r *rig) status(uid string, newerThan time.Duration) *lifecyclev1.PodStatus {
	r.t.Helper()
	resp, err := r.client.GetPodStatus(
		r.ctx(),
		&lifecyclev1.GetPodStatusRequest{Uid: uid, NewerThanBoottimeNs: int64(newerThan)},
	)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.GetStatus()
}

// source returns the rig's event stream, as syncloop follows it.
func (r *rig) source() stream.Source[*lifecyclev1.Event] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*lifecyclev1.Event], error) {
		watch, err := r.client.WatchEvents(ctx, &lifecyclev1.WatchEventsRequest{ResumeToken: token})
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, *lifecyclev1.Event, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetEvent(), err
		}, nil
	})
}

// watcher is a subscription of the event stream, after its snapshot.
type watcher struct {
	r        *rig
	snapshot map[string]*lifecyclev1.Event
	deltas   chan stream.Message[*lifecyclev1.Event]
}

// watch subscribes and waits until the snapshot is complete.
func (r *rig) watch() *watcher {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	sub, err := r.source().Subscribe(ctx, nil)
	if err != nil {
		cancel()
		r.t.Fatal(err)
	}
	w := &watcher{
		r:        r,
		snapshot: map[string]*lifecyclev1.Event{},
		deltas:   make(chan stream.Message[*lifecyclev1.Event], 10000),
	}
	for synced := false; !synced; {
		m, err := sub.Next(r.ctx())
		if err != nil {
			cancel()
			r.t.Fatal(err)
		}
		if m.Kind == stream.KindSnapshot {
			w.snapshot[m.Key] = m.Value
		}
		synced = m.Kind == stream.KindSynced
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			m, err := sub.Next(ctx)
			if err != nil {
				close(w.deltas)
				return
			}
			if m.Kind == stream.KindDelta {
				w.deltas <- m
			}
		}
	}()
	r.t.Cleanup(func() { cancel(); sub.Close(); <-ended })
	return w
}

// next waits for the next event.
func (w *watcher) next() *lifecyclev1.Event {
	w.r.t.Helper()
	select {
	case m, ok := <-w.deltas:
		if !ok {
			w.r.t.Fatal("the stream ended")
		}
		return m.Value
	case <-time.After(patience):
		w.r.t.Fatalf("no event within %v", patience)
	}
	return nil
}

// until waits for an event of a type about a container, or a pod when id is its UID, and returns it.
func (w *watcher) until(kind lifecyclev1.EventType, id string) *lifecyclev1.Event {
	w.r.t.Helper()
	for {
		if e := w.next(); e.GetType() == kind && (e.GetContainerId() == id || e.GetPodUid() == id) {
			return e
		}
	}
}
