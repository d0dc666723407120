package pleg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/health/grpc_health_v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// beside runs a second pleg on the state directory of the rig, on a separate socket.
func (r *rig) beside() *rig {
	r.t.Helper()
	cfg := r.cfg
	cfg.ReadOnly = true
	dir := harness.ShortDir(r.t)
	cfg.Listen, cfg.MetricsListen = "unix://"+filepath.Join(dir, "second.sock"), ""
	second := &rig{t: r.t, cfg: cfg}
	second.run()
	conn, err := rpc.Dial(cfg.Listen)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		second.stop()
		if err := conn.Close(); err != nil {
			r.t.Error(err)
		}
	})
	second.client = lifecyclev1.NewLifecycleServiceClient(conn)
	return second
}

// TestTwoPLEGsPublishTheSameEvents: the second one needs no lock, and does not affect the first.
func TestTwoPLEGsPublishTheSameEvents(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	first := startPLEG(t, fake.Endpoint())
	first.synced()
	second := first.beside()
	second.synced()
	a, b := first.watch(), second.watch()
	if a.snapshot["uid-1"] == nil || b.snapshot["uid-1"] == nil {
		t.Fatalf("the snapshots have %v and %v", a.snapshot, b.snapshot)
	}
	both := func(kind lifecyclev1.EventType, id string) {
		t.Helper()
		for _, w := range []*watcher{a, b} {
			w.until(kind, id)
		}
	}
	fake.Exit(ids["app"], 3)
	both(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, ids["app"])
	_, more := fake.RunPod(fakecri.Pod{UID: "uid-2", Containers: []string{"app"}})
	both(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED, more["app"])
	// The node's pleg stops, and the other one keeps serving; it has no lock.
	first.stop()
	if got := second.status("uid-2", 0); len(got.GetContainers()) != 1 {
		t.Errorf("status(uid-2, 0) = %v, want len(Containers) 1", got)
	}
	first.run()
	first.synced()
}

// TestAReadOnlyPLEGWritesNoFile, not even the state directory, so that it runs where there is no node.
func TestAReadOnlyPLEGWritesNoFile(t *testing.T) {
	fake := fakecri.New(t)
	_, ids := fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	first := startPLEG(t, fake.Endpoint())
	first.synced()
	first.cfg.StateDir = filepath.Join(t.TempDir(), "none")
	second := first.beside()
	second.synced()
	w := second.watch()
	fake.Exit(ids["app"], 3)
	w.until(lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED, ids["app"])
	second.stop()
	if _, err := os.Lstat(first.cfg.StateDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a state directory: %v", err)
	}
}

func TestTheSecondPLEGGetsTheAdviceToReadOnly(t *testing.T) {
	fake := fakecri.New(t)
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	_, err := takePlace(r.cfg, silent().Logger)
	for _, want := range []string{fmt.Sprintf("pleg with pid %d", os.Getpid()), "stop that process", "--state-dir", "--read-only and another --listen address"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// TestHealthSaysThatTheRuntimeIsAway within seconds, and that it is back.
func TestHealthSaysThatTheRuntimeIsAway(t *testing.T) {
	fake := fakecri.New(t)
	r := startPLEG(t, fake.Endpoint())
	r.synced()
	conn, err := rpc.Dial(r.cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	becomes := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		eventually.That(r.t, "the runtime is "+want.String(), func() bool {
			got, err := grpc_health_v1.NewHealthClient(conn).
				Check(r.ctx(), &grpc_health_v1.HealthCheckRequest{Service: waitRuntime})
			return err == nil && got.GetStatus() == want
		})
	}
	becomes(grpc_health_v1.HealthCheckResponse_SERVING)
	fake.Stop()
	becomes(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	health, err := r.client.GetHealth(r.ctx(), &lifecyclev1.GetHealthRequest{})
	if reasons := strings.Join(
		health.GetReasons(),
		"\n",
	); err != nil ||
		!strings.Contains(reasons, "the container runtime at "+fake.Endpoint()+" does not answer") ||
		!strings.Contains(reasons, "--container-runtime-endpoint") {
		t.Errorf("it says %q, %v", reasons, err)
	}
	if err := fake.Start(); err != nil {
		t.Fatal(err)
	}
	becomes(grpc_health_v1.HealthCheckResponse_SERVING)
}
