package nodestatus

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/checkpoint"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
	"github.com/quartet-node/quartet/test/cluster"
)

// told waits until the API server has events of a node with exactly these reasons, sorted, and returns them.
func awaitEvents(t *testing.T, client kubernetes.Interface, node string, want ...string) []v1.Event {
	t.Helper()
	var got []string
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		list, err := client.CoreV1().
			Events("default").
			List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node})
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, e := range list.Items {
			got = append(got, e.Reason)
		}
		slices.Sort(got)
		if slices.Equal(got, want) {
			return list.Items
		}
	}
	t.Fatalf("the API server has the events %q, want %q", got, want)
	return nil
}

// TestEventsOfTheNodeReachTheAPIServer checks events with the kubelet's reasons: the start on another boot of the
// machine, changes of conditions, and the cordon.
func TestEventsOfTheNodeReachTheAPIServer(t *testing.T) {
	c := shared.Cluster(t)
	admin := c.Client(t)
	const name = "eventful"
	cfg := quick(member(t, name, c.Kubeconfig(t, cluster.NodeUser(name), cluster.Nodes)))
	cfg.Kubelet.EvictionHard = map[string]string{} // the disk of this machine may be full
	before := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{BootID: "an earlier one"}},
	}
	if err := checkpoint.Save(&statedir.Writer{}, cfg.StateDir, nodeobject.State{Node: before}); err != nil {
		t.Fatal(err)
	}
	stop := background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	start := []string{
		"NodeHasNoDiskPressure",
		"NodeHasSufficientMemory",
		"NodeHasSufficientPID",
		"NodeNotReady",
		"Rebooted",
		"Starting",
	}
	events := awaitEvents(t, admin, name, start...)
	for _, e := range events {
		if e.Reason == "Rebooted" &&
			(e.Type != v1.EventTypeWarning || !strings.Contains(e.Message, "Node eventful has been rebooted, boot id: ")) {
			t.Errorf("a reboot is told as %s %s", e.Type, e.Message)
		}
	}
	servePeers(t, cfg)
	awaitEvents(t, admin, name, slices.Sorted(slices.Values(append([]string{"NodeReady"}, start...)))...)
	stored := get(t, admin, name)
	if _, err := admin.CoreV1().
		Nodes().
		Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	all := slices.Sorted(slices.Values(append([]string{"NodeNotSchedulable", "NodeReady"}, start...)))
	for _, e := range awaitEvents(t, admin, name, all...) {
		if e.Reason == "NodeNotSchedulable" &&
			(e.InvolvedObject.UID != stored.UID || e.Source.Component != "kubelet" || e.Source.Host != name) {
			t.Errorf("a cordoned node is told of by %+v", e)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestEventsOfAStandaloneNodeArePublished: a subscriber gets the events, and a resumed one gets each only once.
func TestEventsOfAStandaloneNodeArePublished(t *testing.T) {
	cfg := quick(config(t))
	before := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: cfg.NodeName},
		Status:     v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{BootID: "an earlier one"}},
	}
	if err := checkpoint.Save(&statedir.Writer{}, cfg.StateDir, nodeobject.State{Node: before}); err != nil {
		t.Fatal(err)
	}
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	c := client(t, cfg)
	watch := func(token []byte) (next func() (*streamv1.Frame, *v1.Event)) {
		t.Helper()
		w, err := c.WatchNodeEvents(t.Context(), &nodev1.WatchNodeEventsRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			t.Fatal(err)
		}
		return func() (*streamv1.Frame, *v1.Event) {
			t.Helper()
			m, err := w.Recv()
			if err != nil {
				t.Fatal(err)
			}
			event := &v1.Event{}
			if err := event.Unmarshal(m.GetEvent().GetEvent()); err != nil {
				t.Fatal(err)
			}
			return m.GetFrame(), event
		}
	}
	until := func(next func() (*streamv1.Frame, *v1.Event), reason string) (seen []string, token []byte) {
		t.Helper()
		for {
			frame, event := next()
			if event.Reason == "" {
				continue
			}
			seen = append(seen, event.Reason)
			if event.InvolvedObject.Kind != "Node" || event.InvolvedObject.Name != cfg.NodeName {
				t.Errorf("%s is told of %v, want Kind %q and Name %v", event.Reason, event.InvolvedObject, "Node", cfg.NodeName)
			}
			if event.Reason == reason {
				return seen, frame.GetResumeToken()
			}
		}
	}
	next := watch(nil)
	seen, _ := until(next, "NodeHasSufficientPID")
	for _, reason := range []string{"Starting", "Rebooted", "NodeHasSufficientMemory"} {
		if !slices.Contains(seen, reason) {
			t.Errorf("it is not told %s: %q", reason, seen)
		}
	}
	servePeers(t, cfg)
	_, token := until(next, "NodeReady")
	if frame, _ := watch(token)(); frame.GetOpening().GetStart() != streamv1.Start_START_RESUMED {
		t.Errorf("with a token it begins by %v, want %v", frame.GetOpening().GetStart(), streamv1.Start_START_RESUMED)
	}
}

func TestPublishedTransitions(t *testing.T) {
	node := func(ready, memory v1.ConditionStatus) *v1.Node {
		return &v1.Node{
			Status: v1.NodeStatus{
				Conditions: []v1.NodeCondition{
					{Type: v1.NodeReady, Status: ready},
					{Type: v1.NodeMemoryPressure, Status: memory},
					{Type: "Other", Status: ready},
				},
			},
		}
	}
	const yes, no, unknown = v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown
	for _, test := range []struct {
		before, after *v1.Node
		want          string
	}{
		{nil, node(no, no), "NodeNotReady NodeHasSufficientMemory"},
		{nil, node(unknown, unknown), ""},
		{node(no, no), node(no, no), ""},
		{node(no, no), node(yes, no), "NodeReady"},
		{node(yes, no), node(unknown, unknown), "NodeNotReady"},
		{node(unknown, no), node(no, yes), "NodeNotReady NodeHasInsufficientMemory"},
		{node(yes, yes), node(no, no), "NodeNotReady NodeHasSufficientMemory"},
	} {
		if got := strings.Join(transitions(test.before, test.after), " "); got != test.want {
			t.Errorf("from %v to %v: %q, want %q", test.before, test.after, got, test.want)
		}
	}
}
