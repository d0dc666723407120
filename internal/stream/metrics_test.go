package stream_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/stream"
)

// idle lets a subscription find that there is no further message, in a bubble, where time passes only then.
func idle(t *testing.T, sub stream.Subscription[string]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if m, err := sub.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v and %v, want nothing", m, err)
	}
}

func TestMetricsSayHowFarBehindSubscribersAre(t *testing.T) {
	for name, open := range map[string]func(stream.Config) (put func(key string), src stream.Source[string]){
		"level": func(cfg stream.Config) (func(string), stream.Source[string]) {
			l := stream.NewLevel[string](cfg)
			return func(key string) { l.Put(key, "v") }, l
		},
		"edge": func(cfg stream.Config) (func(string), stream.Source[string]) {
			e := stream.NewEdge[string](cfg)
			return func(key string) { e.Emit(key, "v", "v") }, e
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clock, registry := testingclock.NewFakeClock(time.Now()), prometheus.NewRegistry()
				put, src := open(stream.Config{Clock: clock, Metrics: stream.NewServedMetrics(registry, stream.NamePods)})
				want := func(value float64, metric string, labels ...string) {
					t.Helper()
					metricstest.Want(t, registry, value, metric, append(labels, "stream", "pods")...)
				}
				want(0, "quartet_stream_subscribers")
				put("a")
				put("b")
				fast, slow := subscribe(t, src, nil), subscribe(t, src, nil)
				want(2, "quartet_stream_subscribers")
				want(2, "quartet_stream_lag_messages")
				drain(t, slow, 2)
				want(2, "quartet_stream_lag_messages")
				drain(t, slow, 2)
				drain(t, fast, 4)
				idle(t, fast)
				idle(t, slow)
				clock.Step(time.Hour)
				want(0, "quartet_stream_lag_messages")
				want(0, "quartet_stream_lag_seconds")

				put("c")
				drain(t, fast, 1)
				idle(t, fast)
				clock.Step(time.Second)
				put("d")
				put("e")
				clock.Step(time.Second)
				want(3, "quartet_stream_lag_messages")
				want(2, "quartet_stream_lag_seconds")
				want(5, "quartet_stream_changes_total")
				drain(t, slow, 2)
				want(2, "quartet_stream_lag_messages") // those of the fast subscriber
				want(2, "quartet_stream_lag_seconds")
				drain(t, fast, 2)
				drain(t, slow, 1)
				idle(t, fast)
				idle(t, slow)
				want(0, "quartet_stream_lag_messages")
				want(0, "quartet_stream_lag_seconds")
				want(6, "quartet_stream_messages_sent_total", "kind", "delta")
				want(4, "quartet_stream_messages_sent_total", "kind", "snapshot")
				want(2, "quartet_stream_messages_sent_total", "kind", "opened")
				want(2, "quartet_stream_messages_sent_total", "kind", "synced")
				fast.Close()
				fast.Close()
				want(1, "quartet_stream_subscribers")
				want(1, "quartet_stream_subscriptions_ended_total", "reason", "left")
			})
		})
	}
}

func TestMetricsSayHowSubscriptionsBeginAndEnd(t *testing.T) {
	registry := prometheus.NewRegistry()
	edge := stream.NewEdge[string](
		stream.Config{Epoch: "e", LogSize: 2, Metrics: stream.NewServedMetrics(registry, stream.NameLifecycleEvents)},
	)
	want := func(value float64, metric string, labels ...string) {
		t.Helper()
		metricstest.Want(t, registry, value, metric, labels...)
	}
	sub := subscribe(t, edge, nil)
	synced := drain(t, sub, 2)[1]
	for range 3 {
		edge.Emit("a", "v", "v")
	}
	if _, err := sub.Next(t.Context()); !errors.Is(err, stream.ErrOverflow) {
		t.Fatalf("got %v, want the overflow", err)
	}
	sub.Close()
	want(1, "quartet_stream_subscriptions_ended_total", "reason", "overflow")
	want(3, "quartet_stream_skipped_changes_total")
	for token, start := range map[string]string{
		string(synced.Token): "snapshot_compacted", "e/1": "resumed", "other/1": "snapshot_other_epoch", "e/9": "snapshot_invalid_token",
	} {
		sub := subscribe(t, edge, []byte(token))
		want(1, "quartet_stream_subscriptions_total", "start", start)
		defer sub.Close()
	}
	want(1, "quartet_stream_subscriptions_total", "start", "snapshot_new")
	last := subscribe(t, edge, nil)
	drain(t, last, 3)
	edge.Close()
	if _, err := last.Next(t.Context()); !errors.Is(err, stream.ErrClosed) {
		t.Fatalf("got %v, want the end", err)
	}
	last.Close()
	want(1, "quartet_stream_subscriptions_ended_total", "reason", "publisher_stopped")
}

func TestMetricsOfAFollower(t *testing.T) {
	registry := prometheus.NewRegistry()
	want := func(value float64, metric string, labels ...string) {
		t.Helper()
		metricstest.Want(t, registry, value, metric, append(labels, "stream", "pods")...)
	}
	level, src := stream.NewLevel[string](stream.Config{}), &breakable{}
	level.Put("a", "1")
	src.replace(level)
	ctx, cancel := context.WithCancel(t.Context())
	synced, lost, done := make(chan struct{}, 10), make(chan struct{}, 10), make(chan error, 1)
	followed := stream.NewFollowedMetrics(registry, stream.NamePods)
	want(0, "quartet_stream_follower_connected")
	want(0, "quartet_stream_follower_last_message_timestamp_seconds")
	began := time.Now()
	go func() {
		done <- stream.Follow(ctx, stream.FollowConfig[string]{
			Source: src, Handle: func(stream.Change[string]) {}, Metrics: followed,
			Synced: func() { synced <- struct{}{} },
			Connected: func(up bool, _ error) {
				if !up {
					lost <- struct{}{}
				}
			},
		})
	}()
	<-synced
	want(1, "quartet_stream_follower_connected")
	want(1, "quartet_stream_follower_connections_total", "start", "snapshot_new")
	want(1, "quartet_stream_follower_messages_total", "kind", "snapshot")
	if at := metricstest.Value(
		t,
		registry,
		"quartet_stream_follower_last_message_timestamp_seconds",
	); at < float64(began.Unix()) ||
		at > float64(time.Now().Unix()+1) {
		t.Errorf("the last message came at %v, want now", at)
	}
	src.replace(level)
	<-lost
	<-synced
	want(1, "quartet_stream_follower_losses_total")
	want(1, "quartet_stream_follower_connections_total", "start", "resumed")
	want(1, "quartet_stream_follower_connected")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the follower ended with %v, want %v", err, context.Canceled)
	}
}
