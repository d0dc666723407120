package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/stream"
)

// benchChanges is how many changes BenchmarkStuckSubscriber makes, and benchEarly after how many the memory is looked
// at first.
const (
	benchChanges = 100_000
	benchEarly   = 10_000
)

// BenchmarkStuckSubscriber is what a subscriber that never reads costs during 100,000 changes of 500 pods, every tenth
// of which replaces a pod: the heap of the process before it subscribes, after 10,000 and after 100,000 changes, and
// when it has gone, and how long a change takes to a subscriber that reads. The process is the server with all of its
// subscribers.
func BenchmarkStuckSubscriber(b *testing.B) {
	b.Run("stuck=none", func(b *testing.B) { benchStuck(b, configv1.Mode_MODE_UNSPECIFIED) })
	for _, mode := range modes() {
		name := strings.ToLower(strings.TrimPrefix(mode.String(), "MODE_"))
		b.Run(fmt.Sprintf("stuck=%s", name), func(b *testing.B) { benchStuck(b, mode) })
	}
}

func benchStuck(b *testing.B, mode configv1.Mode) {
	b.Helper()
	r := newRig(b, stuckPods)
	healthy := r.subscribe(b.Context(), configv1.Mode_MODE_INCREMENTAL)
	if err := healthy.sync(); err != nil {
		b.Fatal(err)
	}
	took := make([]time.Duration, 0, benchChanges)
	change := func(times int) {
		for range times {
			next := r.update
			if r.changes%10 == 0 {
				next = r.replace
			}
			began := time.Now()
			if err := healthy.see(next()); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
	}
	for b.Loop() {
		change(10 * stream.DefaultTombstones)
		took = took[:0]
		ctx, end := context.WithCancel(b.Context())
		reportHeap(b, "MiB-before")
		if mode != configv1.Mode_MODE_UNSPECIFIED {
			r.subscribe(ctx, mode)
		}
		change(benchEarly)
		reportHeap(b, "MiB-at-10k")
		change(benchChanges - benchEarly)
		reportHeap(b, "MiB-at-100k")
		r.isHeldBy(healthy)
		end()
		r.isAlone()
		reportHeap(b, "MiB-gone")
	}
	reportLatency(b, took)
}

// isAlone waits until there is no more than one subscriber.
func (r *rig) isAlone() {
	r.tb.Helper()
	for deadline := time.Now().Add(stuckPatience); ; {
		families, err := r.registry.Gather()
		if err != nil {
			r.tb.Fatal(err)
		}
		at := slices.IndexFunc(
			families,
			func(f *dto.MetricFamily) bool { return f.GetName() == "quartet_stream_subscribers" },
		)
		subscribers := families[at].GetMetric()[0].GetGauge().GetValue()
		if subscribers <= 1 {
			return
		}
		if time.Now().After(deadline) {
			r.tb.Fatalf("%v subscribers, want one", subscribers)
		}
	}
}

func reportHeap(b *testing.B, name string) {
	b.Helper()
	b.ReportMetric(float64(heap())/(1<<20), name)
}
