package apievents_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/apievents"
	"github.com/quartet-node/quartet/internal/events"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/test/cluster"
)

const patience = 60 * time.Second

// record returns a recorder of a node whose events are sent to the API server of a kubeconfig until the test ends.
func record(t *testing.T, node, kubeconfig string) *events.Recorder {
	t.Helper()
	cfg, err := nodeconfig.Parse(
		nodeconfig.SyncLoop,
		[]string{"--hostname-override", node, "--kubeconfig", kubeconfig},
		io.Discard,
	)
	if err != nil {
		t.Fatal(err)
	}
	target, err := apievents.Connect(nodeconfig.SyncLoop, cfg, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- target.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v, want %v", err, context.Canceled)
		}
	})
	r := events.New(
		events.Config{
			NodeName: node, NodeUID: func() types.UID { return "" }, Publish: target.Send, Clock: clock.RealClock{},
		},
	)
	t.Cleanup(r.Close)
	return r
}

// await waits until the API server has these events of a node, as REASON COUNT, in the order of their reasons.
func await(t *testing.T, c *cluster.Cluster, node string, want ...string) []v1.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		var got []string
		list, err := c.Client(t).
			CoreV1().
			Events("").
			List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + node})
		if err == nil {
			for _, e := range list.Items {
				got = append(got, fmt.Sprintf("%s %d", e.Reason, e.Count))
			}
			slices.Sort(got)
			if slices.Equal(got, want) {
				return list.Items
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the API server has %q (%v), want %q", got, err, want)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestARealAPIServerHasTheEvents of a node with the rights of nodes: new ones, repeated ones, and those of the time
// when it was down.
func TestARealAPIServerHasTheEvents(t *testing.T) {
	c := shared.Cluster(t)
	proxy := c.Proxy(t)
	const node = "events-1"
	r := record(t, node, proxy.Kubeconfig(t, cluster.NodeUser(node), cluster.Nodes))
	r.NodeNormal(t.Context(), "Starting", "Starting.")
	first := await(t, c, node, "Starting 1")[0]
	if first.Source != (v1.EventSource{Component: "kubelet", Host: node}) || first.InvolvedObject.Kind != "Node" ||
		first.InvolvedObject.UID != node ||
		first.Namespace != "default" {
		t.Errorf("the event is %+v, want Source %v, InvolvedObject.Kind %q, InvolvedObject.UID %v and Namespace %q",
			first, v1.EventSource{Component: "kubelet", Host: node}, "Node", node, "default")
	}
	r.NodeNormal(t.Context(), "Starting", "Starting.")
	await(t, c, node, "Starting 2")
	// The API server has removed the event.
	if err := c.Client(t).CoreV1().Events("default").Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, c, node)
	r.NodeNormal(t.Context(), "Starting", "Starting.")
	await(t, c, node, "Starting 3")

	proxy.Refuse(t)
	for range 3 {
		r.NodeWarning(t.Context(), "ImageGCFailed", "no space")
	}
	r.NodeWarning(t.Context(), "ContainerGCFailed", "in use")
	proxy.Accept(t)
	await(t, c, node, "ContainerGCFailed 1", "ImageGCFailed 3", "Starting 3")
}

// TestAHangingAPIServerDelaysNoEvent: the recorder returns at once, and the events arrive when the API server
// answers again.
func TestAHangingAPIServerDelaysNoEvent(t *testing.T) {
	c := shared.Cluster(t)
	const node = "events-2"
	r := record(t, node, c.Kubeconfig(t, cluster.NodeUser(node), cluster.Nodes))
	r.NodeNormal(t.Context(), "Starting", "Starting.")
	await(t, c, node, "Starting 1")
	c.APIServer.Pause(t)
	for range 20 {
		r.NodeWarning(t.Context(), "ImageGCFailed", "no space")
	}
	c.APIServer.Resume(t)
	await(t, c, node, "ImageGCFailed 20", "Starting 1")
}

// TestAnAPIServerThatHasTooMuchToDoIsAskedAgainLater checks that the client itself does not retry.
func TestAnAPIServerThatHasTooMuchToDoIsAskedAgainLater(t *testing.T) {
	var requests atomic.Int32
	done := make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) <= 2 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Event"}`) // an error means that the client has gone
		close(done)
	}))
	defer api.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	content := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: '" + api.URL + "'}}]\nusers: [{name: u, user: {token: t}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	r := record(t, "node-1", kubeconfig)
	begun := time.Now()
	r.NodeNormal(t.Context(), "Starting", "Starting.")
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("it is not asked again")
	}
	if took := time.Since(begun); requests.Load() != 3 || took < 2*time.Second {
		t.Errorf("%d requests in %s, want 3 in at least 2 s", requests.Load(), took)
	}
}
