package server_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// receipt is a message that a subscriber has received.
type receipt struct {
	at     time.Time
	update *configv1.PodUpdate
	err    error
}

// BenchmarkFromSetToReceipt is the time from a source's giving its set, in which one pod has changed, to that pod's
// being in the hands of a subscriber behind the socket. The next change waits until every subscriber has the last one.
// The server and all of its subscribers share this process, each subscriber with a connection of its own.
func BenchmarkFromSetToReceipt(b *testing.B) {
	for _, pods := range []int{110, 500} {
		for _, subscribers := range []int{1, 10, 100} {
			b.Run(
				fmt.Sprintf("pods=%d/subscribers=%d", pods, subscribers),
				func(b *testing.B) { benchReceipt(b, pods, subscribers) },
			)
		}
	}
}

func benchReceipt(b *testing.B, pods, subscribers int) {
	b.Helper()
	r := newRig(b, pods)
	ctx, cancel := context.WithCancel(b.Context())
	receipts := make(chan receipt, subscribers)
	for range subscribers {
		s := r.subscribe(ctx, configv1.Mode_MODE_INCREMENTAL)
		if err := s.sync(); err != nil {
			b.Fatal(err)
		}
		go s.report(ctx, receipts)
	}
	var took []time.Duration
	for b.Loop() {
		_, changed := r.next(false)
		began := time.Now()
		r.desired.Set(sourceName, source.Reading{Pods: r.pods})
		for range subscribers {
			got := <-receipts
			if got.err != nil || !has(got.update, changed) {
				b.Fatalf("received %v, %v; want %s", got.update, got.err, changed.Name)
			}
			took = append(took, got.at.Sub(began))
		}
	}
	cancel()
	for range subscribers {
		<-receipts
	}
	reportLatency(b, took)
}

// report tells of each pod that is received, and, last, why no more are.
func (s *subscriber) report(ctx context.Context, receipts chan<- receipt) {
	for {
		m, err := s.receive()
		if err == nil && m.GetPod() == nil {
			continue
		}
		select {
		case receipts <- receipt{at: time.Now(), update: m.GetPod(), err: err}:
		case <-ctx.Done():
			if err == nil {
				continue
			}
			receipts <- receipt{err: err}
		}
		if err != nil {
			return
		}
	}
}

// reportLatency replaces the time of an iteration, which is that of many receipts, by that of one.
func reportLatency(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	at := func(percent int) float64 {
		return float64(took[(len(took)-1)*percent/100].Microseconds()) / 1000
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(at(50), "p50-ms")
	b.ReportMetric(at(99), "p99-ms")
}
