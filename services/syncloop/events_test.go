package syncloop

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/test/cluster"
)

// TestEventsOfPodsReachTheAPIServer checks that a node with the permissions of nodes can send the events of pods.
func TestEventsOfPodsReachTheAPIServer(t *testing.T) {
	c := cluster.Start(t)
	cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, []string{
		"--hostname-override", "node-1", "--kubeconfig", c.Kubeconfig(t, cluster.NodeUser("node-1"), cluster.Nodes),
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	parts := components.New(slog.New(slog.DiscardHandler))
	h := &host{cfg: cfg, logger: slog.New(slog.DiscardHandler), registry: prometheus.NewRegistry()}
	events, err := newEvents(h, parts)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- parts.Wait(ctx) }()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-1"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
	}
	events.Warning(t.Context(), pod, "main", "BackOff", "Back-off restarting failed container")
	events.Warning(t.Context(), pod, "main", "BackOff", "Back-off restarting failed container")
	var last []v1.Event
	for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		list, err := c.Client(t).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Pod,involvedObject.uid=uid-1"})
		if err != nil {
			t.Fatal(err)
		}
		if last = list.Items; len(last) == 1 && last[0].Count == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the API server has %+v", last)
		}
	}
	if got := last[0]; got.Reason != "BackOff" || got.Type != v1.EventTypeWarning || got.InvolvedObject.FieldPath != "spec.containers{main}" || got.Source != (v1.EventSource{Component: "kubelet", Host: "node-1"}) {
		t.Errorf("the event is %+v, want Reason %q, Type %v, InvolvedObject.FieldPath %q and Source %v",
			got, "BackOff", v1.EventTypeWarning, "spec.containers{main}",
			v1.EventSource{Component: "kubelet", Host: "node-1"})
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
