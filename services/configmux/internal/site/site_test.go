package site

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/reflector"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/configmux/internal/apisource"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/sealing"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the time limit of a wait.
const patience = time.Minute

// failer is a *testing.T or a *rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// client returns a client of an API server that nobody asks.
func client(t failer) rest.Interface {
	t.Helper()
	client, err := rest.RESTClientFor(&rest.Config{
		Host: "https://192.0.2.1:6443", APIPath: "/api",
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &schema.GroupVersion{Version: "v1"},
			NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(),
		},
	})
	must(t, err)
	return client
}

// rig is a site of all nodes whose feed the test passes pods to.
type rig struct {
	*Site

	health *rpc.Health
	stop   func()
}

func newRig(t failer, dir string, logger *slog.Logger) *rig {
	t.Helper()
	health, registry := rpc.NewHealth(), prometheus.NewRegistry()
	s := New(Config{
		Nodes: nodeconfig.Nodes{All: true}, Client: client(t), Server: func() string { return "https://192.0.2.1:6443" },
		Allowed: privilege.Everything(), Dir: dir, Health: health,
		Clock: clock.RealClock{}, Tracer: noop.NewTracerProvider().Tracer(""), Logger: logger,
		Seals:    sealing.NewKeyring(filepath.Join(dir, "key"), os.Geteuid()),
		Requests: apisource.NewMetrics(registry), Muxes: mux.NewMetrics(registry),
	})
	ctx, cancel := context.WithCancel(context.Background())
	saved, err := s.openDir()
	must(t, err)
	s.mu.Lock()
	s.ctx = ctx
	for _, name := range saved {
		s.add(name)
	}
	s.mu.Unlock()
	close(s.begun)
	return &rig{Site: s, health: health, stop: func() {
		cancel()
		s.running.Wait()
		s.Close()
	}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// settle returns when a node has handled what was passed to it: its source takes one thing after another.
func (r *rig) settle() {
	for _, n := range r.all() {
		n.feed.Requested(reflector.VerbWatch, time.Now(), nil)
		n.feed.Requested(reflector.VerbWatch, time.Now(), nil)
	}
}

// pods returns the pods of a node as "NAME VERSION", sorted.
func (r *rig) pods(t failer, node string) []string {
	t.Helper()
	r.settle()
	n := r.get(node)
	if n == nil {
		return nil
	}
	return names(t, n.desired.Pods())
}

func names(t failer, updates []*configv1.PodUpdate) []string {
	t.Helper()
	var out []string
	for _, u := range updates {
		pod := &v1.Pod{}
		must(t, pod.Unmarshal(u.GetPod()))
		out = append(out, pod.Name+" "+pod.Spec.Containers[0].Image)
	}
	slices.Sort(out)
	return out
}

// pod returns a pod of a node.
func pod(node, name string, version int) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: types.UID(node + "-" + name), ResourceVersion: fmt.Sprint(version),
		},
		Spec: v1.PodSpec{
			NodeName: node, Containers: []v1.Container{{Name: "c", Image: fmt.Sprintf("i:%d", version)}},
		},
	}
}

// TestEachNodeHasItsOwnPods: whatever comes from the API server, and whoever connects when, each node has the pods that
// are bound to it, and no other.
func TestEachNodeHasItsOwnPods(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		must(t, err)
		r := newRig(t, dir, quiet())
		defer r.stop()
		node := rapid.SampledFrom([]string{"a", "b", "c", "d.example"})
		name := rapid.SampledFrom([]string{"one", "two", "three"})
		// want has the pods of each node.
		want, version, listed := map[string]map[string]*v1.Pod{}, 0, false
		put := func(t *rapid.T) *v1.Pod {
			version++
			p := pod(node.Draw(t, "node"), name.Draw(t, "name"), version)
			if want[p.Spec.NodeName] == nil {
				want[p.Spec.NodeName] = map[string]*v1.Pod{}
			}
			want[p.Spec.NodeName][p.Name] = p
			return p
		}
		t.Repeat(map[string]func(*rapid.T){
			"list": func(t *rapid.T) {
				clear(want)
				for range rapid.IntRange(0, 6).Draw(t, "pods") {
					put(t)
				}
				var objects []runtime.Object
				for _, pods := range want {
					for _, p := range pods {
						objects = append(objects, p.DeepCopy())
					}
				}
				r.feed.Listed(objects, time.Now())
				listed = true
			},
			"change": func(t *rapid.T) {
				if listed { // a watch follows a list
					r.feed.Changed(put(t).DeepCopy())
				}
			},
			"delete": func(t *rapid.T) {
				of, which := node.Draw(t, "node"), name.Draw(t, "name")
				if gone := want[of][which]; gone != nil {
					delete(want[of], which)
					r.feed.Deleted(gone.DeepCopy())
				}
			},
			"connect": func(t *rapid.T) {
				_, err := r.Node(context.Background(), node.Draw(t, "node"))
				must(t, err)
			},
			"drop": func(*rapid.T) { r.settle(); r.feed.dropIdle() },
			"": func(t *rapid.T) {
				for _, of := range []string{"a", "b", "c", "d.example"} {
					var wanted []string
					for _, p := range want[of] {
						wanted = append(wanted, p.Name+" "+p.Spec.Containers[0].Image)
					}
					slices.Sort(wanted)
					if got := r.pods(t, of); !slices.Equal(got, wanted) {
						t.Fatalf("node %s has %q, want %q", of, got, wanted)
					}
					if n := r.get(of); n != nil && n.desired.Sources()[0].GetReady() != listed {
						t.Fatalf("node %s: ready = %t after a list: %t", of, !listed, listed)
					}
				}
			},
		})
	})
}

// TestASlowNodeDelaysNoOther: a subscriber that reads nothing costs one change a pod, and another node gets its pods.
func TestASlowNodeDelaysNoOther(t *testing.T) {
	r := newRig(t, t.TempDir(), quiet())
	defer r.stop()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	subscribe := func(node string) stream.Subscription[mux.Entry] {
		n, err := r.Node(ctx, node)
		must(t, err)
		sub, err := n.desired.Stream(configv1.Mode_MODE_INCREMENTAL).Subscribe(ctx, nil)
		must(t, err)
		return sub
	}
	r.feed.Listed([]runtime.Object{pod("slow", "p", 0), pod("fast", "p", 0)}, time.Now())
	r.settle()
	slow, fast := subscribe("slow"), subscribe("fast")
	defer slow.Close()
	defer fast.Close()
	const changes = 5000
	for version := 1; version <= changes; version++ {
		r.feed.Changed(pod("slow", "p", version))
	}
	r.feed.Changed(pod("fast", "p", 1))
	last := fmt.Sprintf("p i:%d", changes)
	for sub, want := range map[stream.Subscription[mux.Entry]]string{fast: "p i:1", slow: last} {
		messages := 0
		for got := ""; got != want; messages++ {
			m, err := sub.Next(ctx)
			must(t, err)
			if m.Value.Pod != nil {
				got = names(t, []*configv1.PodUpdate{m.Value.Pod})[0]
			}
		}
		if messages > 10 {
			t.Errorf("it took %d messages until %q; unsent changes of a pod fold into one", messages, want)
		}
	}
}

// TestACheckpointThatHangsDelaysNoNode: neither its own nor another gets its pods later.
func TestACheckpointThatHangsDelaysNoNode(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "hung.pods") // who opens it waits for a writer
	must(t, unix.Mkfifo(pipe, 0o600))
	r := newRig(t, dir, quiet())
	defer r.stop()
	r.feed.Listed([]runtime.Object{pod("hung", "p", 0), pod("well", "p", 0)}, time.Now())
	r.feed.Changed(pod("well", "p", 1))
	for node, want := range map[string]string{"hung": "p i:0", "well": "p i:1"} {
		if got := r.pods(t, node); !slices.Equal(got, []string{want}) {
			t.Errorf("node %s has the pods %v, want %s", node, got, want)
		}
	}
	writer, err := os.OpenFile(pipe, os.O_RDWR, 0)
	must(t, err)
	must(t, writer.Close())
}

// TestCheckpointsAreThoseOfNodes: nothing else in the directory is taken for a node, and a name is never a path.
func TestCheckpointsAreThoseOfNodes(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir, quiet())
	r.feed.Listed([]runtime.Object{pod("a", "one", 1), pod("b.example", "two", 2)}, time.Now())
	r.feed.Changed(pod("../../c", "evil", 3))
	r.feed.Changed(pod("C", "evil", 4))
	r.settle()
	r.stop()
	for _, name := range []string{"a.pods.damaged", "UPPER.pods", "other"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	must(t, os.Mkdir(filepath.Join(dir, "d.pods"), 0o700))

	again := newRig(t, dir, quiet())
	defer again.stop()
	var nodes []string
	for _, n := range again.All() {
		nodes = append(nodes, n.Name())
	}
	if want := []string{"a", "b.example"}; !slices.Equal(nodes, want) {
		t.Errorf("the nodes are %q, want %q", nodes, want)
	}
	for node, want := range map[string]string{"a": "one i:1", "b.example": "two i:2"} {
		n := again.get(node)
		n.feed.Requested(reflector.VerbList, time.Now(), errors.New("away"))
		// The checkpoint is read beside the requests, so it may come later than their failure.
		eventually.That(t, fmt.Sprintf("without the API server %s has %q", node, want), func() bool {
			return slices.Equal(again.pods(t, node), []string{want})
		})
		if n.desired.Sources()[0].GetReady() {
			t.Errorf("%s is ready without a list", node)
		}
	}

	// The node that has left the cluster goes, with its checkpoint.
	again.feed.Listed([]runtime.Object{pod("a", "one", 1)}, time.Now())
	again.settle()
	again.feed.dropIdle()
	if _, err := os.Stat(again.checkpoint("b.example")); again.get("b.example") != nil || !os.IsNotExist(err) {
		t.Errorf("the node that has left is there: node %v, checkpoint %v", again.get("b.example"), err)
	}
	if again.get("a") == nil {
		t.Error("the node with a pod is gone")
	}
}

func TestALeftListRemovesCheckpoints(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.pods", "b.pods"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	s := &Site{cfg: Config{Dir: dir, Nodes: nodeconfig.Nodes{Names: []string{"b", "c"}}, Logger: quiet()}}
	saved, err := s.openDir()
	must(t, err)
	left, err := os.ReadDir(dir)
	must(t, err)
	if !slices.Equal(saved, []string{"b"}) || len(left) != 1 {
		t.Errorf("the nodes are %q, and the directory has %v", saved, left)
	}
}

// TestTheHealthCountsNodes: one sentence, however many nodes wait.
func TestTheHealthCountsNodes(t *testing.T) {
	r := newRig(t, t.TempDir(), quiet())
	defer r.stop()
	want := func(text string) {
		t.Helper()
		if got := strings.Join(r.health.Waiting(), "; "); got != text {
			t.Errorf("the health is %q, want %q", got, text)
		}
	}
	want("waiting for the first list of the nodes of the site from 192.0.2.1:6443")
	for _, node := range []string{"a", "b"} {
		_, err := r.Node(t.Context(), node)
		must(t, err)
	}
	want("waiting for the first list of the pods of 2 of 2 nodes from 192.0.2.1:6443")
	r.feed.Listed([]runtime.Object{pod("c", "one", 1)}, time.Now())
	r.settle()
	want("")
}

// TestFailuresAreLoggedOnce: of many nodes, each reason once, and when it is over.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	u := &uplink{logger: slog.New(slog.NewTextHandler(&log, nil)), failures: map[string]string{}}
	for range 3 {
		u.requested(reflector.VerbList, errors.New("first"))
	}
	u.requested(reflector.VerbList, errors.New("second"))
	for range 3 {
		u.requested(reflector.VerbList, nil)
	}
	text := log.String()
	if lines := strings.Count(text, "\n"); lines != 3 || strings.Count(text, "first") != 1 ||
		!strings.Contains(text, "succeed again") {
		t.Errorf("the log has %d lines:\n%s", lines, text)
	}
}

// TestLinesOfANodeAreDetails: without -v 4 nothing is logged of single nodes.
func TestLinesOfANodeAreDetails(t *testing.T) {
	for level, want := range map[slog.Level]int{slog.LevelInfo: 0, slog.LevelDebug: 2} {
		var log bytes.Buffer
		l := detailed(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))).With("node", "a")
		l.WithGroup("g").Warn("careful")
		l.Info("published")
		if got := strings.Count(log.String(), "level=DEBUG"); got != want {
			t.Errorf("at level %v, %d lines of details, want %d:\n%s", level, got, want, &log)
		}
	}
}
