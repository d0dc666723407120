package prober_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/probecalls"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

const (
	// manyProbes is the number of probes, each with a period of one second.
	manyProbes = 500
	// watched is the duration of the measurement.
	watched = 10 * time.Second
)

// BenchmarkFiveHundredProbes measures the cost of scheduling probes whose calls are no-ops. It prints the share of one
// core and the calls per second.
func BenchmarkFiveHundredProbes(b *testing.B) {
	book := prober.OpenBook(b.TempDir(), slog.New(slog.DiscardHandler))
	var calls atomic.Int64
	manager := prober.New(prober.Config{
		Probe: func(context.Context, probecalls.Target) probecalls.Answer {
			calls.Add(1)
			return probecalls.Answer{Outcome: probecalls.Success}
		},
		Book: book, Clock: clock.RealClock{}, Tracer: telemetry.Off(), Logger: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	for i := range manyProbes {
		pod, status := readyPod(i)
		manager.Observe(pod, status, "10.88.0.1", false)
	}
	for range manyProbes { // each pod is ready after its first call
		<-manager.Changes()
	}
	for b.Loop() {
		used, before, began := cpu(b), calls.Load(), time.Now()
		time.Sleep(watched)
		took := time.Since(began).Seconds()
		b.ReportMetric(100*(cpu(b)-used).Seconds()/took, "%-of-a-core")
		b.ReportMetric(float64(calls.Load()-before)/took, "calls/s")
	}
	b.ReportMetric(0, "ns/op") // the duration is fixed
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		b.Error(err)
	}
}

// readyPod returns a pod with a readiness probe whose container has been running for some time.
func readyPod(i int) (*v1.Pod, *lifecyclev1.PodStatus) {
	uid := fmt.Sprintf("uid-%d", i)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), UID: types.UID(uid)}}
	pod.Spec.Containers = []v1.Container{{
		Name:           "main",
		ReadinessProbe: &v1.Probe{PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3},
	}}
	return pod, &lifecyclev1.PodStatus{Uid: uid, Containers: []*lifecyclev1.Container{{
		Name: "main", Id: "container-" + uid, State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
		StartedAt: timestamppb.New(time.Now().Add(-time.Minute)),
	}}}
}

// cpu returns the CPU time of the process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
