package runtimewatch_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/runtimewatch"
	"github.com/quartet-node/quartet/test/fakecri"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestWhatIsSaidOfTheRuntime starts without a runtime, then uses one without CRI v1, and then one that responds, hangs
// for a while, and responds again.
func TestWhatIsSaidOfTheRuntime(t *testing.T) {
	fake := fakecri.New(t)
	fake.Stop()
	client, err := cri.New(cri.Config{
		Endpoint: fake.Endpoint(), Timeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	registry := prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(t.Context())
	reasons, names, done := make(chan string, 1000), make(chan string, 1000), make(chan error, 1)
	go func() {
		done <- runtimewatch.Run(ctx, runtimewatch.Config{
			Endpoint: fake.Endpoint(), Runtime: client.Runtime, Images: client.Images,
			Named: func(name string) { names <- name },
			Waiting: func(what, reason string) {
				if what != "runtime" {
					t.Errorf("it speaks of %q, want %q", what, "runtime")
				}
				reasons <- reason
			},
			Clock: clock.RealClock{}, CgroupDriver: "cgroupfs", Metrics: runtimewatch.NewMetrics(registry),
		})
	}()
	wantReason := func(want string) {
		t.Helper()
		for deadline := time.After(60 * time.Second); ; {
			select {
			case reason := <-reasons:
				if reason == want || want != "" && strings.Contains(reason, want) {
					return
				}
			case <-deadline:
				t.Fatalf("it never says %q", want)
			}
		}
	}
	wantReason("has not answered yet: see that it runs")
	wantReason("no such file or directory: start it, or name its socket")
	// An old runtime does not report its cgroup driver: the process keeps its own.
	fake.Fail("RuntimeConfig", "", 1<<30, status.Error(codes.Unimplemented, "unknown method RuntimeConfig"))
	undo := fake.Fail("Version", "", 1<<30, status.Error(codes.Unimplemented, "unknown service runtime.v1.RuntimeService"))
	if err := fake.Start(); err != nil {
		t.Fatal(err)
	}
	wantReason("it does not serve CRI v1")
	undo()
	wantReason("")
	if name := <-names; name == "" {
		t.Error("the runtime has no name")
	}
	undo = fake.Fail("Version", "", 1<<30, status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	wantReason("it takes connections and hangs: see its log")
	undo()
	wantReason("")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	const losing = "# HELP kubelet_cri_losing_support 1 if a version of Kubernetes does not support the container " +
		"runtime any more.\n# TYPE kubelet_cri_losing_support gauge\nkubelet_cri_losing_support{version=\"1.38.0\"} 1\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(losing)); err != nil {
		t.Error(err)
	}
}
