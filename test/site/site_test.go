// Package site tests a configmux that serves the nodes of a site, as a process, with an API server behind a line that
// is cut.
package site

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/sitenodes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// nodeCount and podsEach are the size of the site.
	nodeCount, podsEach = 50, 5
	// patience is the time limit of a wait that takes seconds.
	patience = 2 * time.Minute
)

// site is a configmux with its nodes, and the line to the API server.
type site struct {
	t         *testing.T
	cluster   *cluster.Cluster
	admin     kubernetes.Interface
	uplink    *cluster.Proxy
	configmux *sitenodes.Configmux
	state     string
	nodes     []*sitenodes.Node
	// want has the names of the pods that each node runs, and stopped counts those that it had to stop.
	want    map[string][]string
	stopped map[string]int
}

func newSite(t *testing.T) *site {
	t.Helper()
	bin := cluster.Require(t)
	c := cluster.Start(t)
	s := &site{
		t: t, cluster: c, admin: c.Client(t), uplink: c.Proxy(t), want: map[string][]string{}, stopped: map[string]int{},
	}
	dir := t.TempDir()
	s.state = filepath.Join(dir, "state", "site")
	var err error
	s.configmux, err = sitenodes.NewConfigmux(c, bin, dir, s.uplink.URL())
	must(t, err)
	s.closes(s.configmux)
	return s
}

// closes ends an instance at the end of the test, and shows its log if the test has failed.
func (s *site) closes(m *sitenodes.Configmux) {
	s.t.Cleanup(func() {
		must(s.t, m.Close())
		if log, err := os.ReadFile(m.Log); err == nil && s.t.Failed() {
			s.t.Logf("the log of configmux, %s:\n%s", m.Log, log)
		}
	})
}

// populate makes nodes with their pods, which reach configmux at an address. The nodes are not started.
func (s *site) populate(count int, address string) {
	s.t.Helper()
	for i := range count {
		n, err := sitenodes.New(s.cluster, s.t.TempDir(), fmt.Sprintf("node-%02d", i), address, nil)
		must(s.t, err)
		s.t.Cleanup(func() { must(s.t, n.Stop()) })
		s.nodes = append(s.nodes, n)
		for p := range podsEach {
			s.create(n.Name, fmt.Sprintf("%s-pod-%d", n.Name, p))
		}
	}
}

// hasCheckpoints waits until configmux has a checkpoint of each node.
func (s *site) hasCheckpoints() {
	s.t.Helper()
	eventually.That(s.t, "there is a checkpoint of each node", func() bool {
		files, err := filepath.Glob(filepath.Join(s.state, "*.pods"))
		return err == nil && len(files) == len(s.nodes)
	})
}

// change deletes a pod of the first node and creates one of the last.
func (s *site) change() {
	s.t.Helper()
	first, last := s.nodes[0].Name, s.nodes[len(s.nodes)-1].Name
	s.remove(first, first+"-pod-0")
	s.create(last, last+"-pod-new")
	slices.Sort(s.want[last])
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *site) create(node, name string) {
	s.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "i:1"}}},
	}
	_, err := s.admin.CoreV1().Pods("default").Create(s.t.Context(), pod, metav1.CreateOptions{})
	must(s.t, err)
	s.want[node] = append(s.want[node], name)
}

func (s *site) remove(node, name string) {
	s.t.Helper()
	now := int64(0)
	must(s.t, s.admin.CoreV1().Pods("default").Delete(s.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	s.want[node] = slices.DeleteFunc(s.want[node], func(n string) bool { return n == name })
	s.stopped[node]++
}

// await waits until a condition holds for all nodes.
func (s *site) await(what string, met func(*sitenodes.Node) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	must(s.t, sitenodes.Await(ctx, what, s.nodes, met))
}

// isRight reports whether a node runs what it should, and has stopped no other pod than those that were deleted.
func (s *site) isRight(n *sitenodes.Node) bool {
	return slices.Equal(n.Running(), s.want[n.Name]) && n.Stops() == s.stopped[n.Name]
}

// haveAll waits until all nodes have the pods of the API server.
func (s *site) haveAll() {
	s.t.Helper()
	s.await("all nodes have their pods from the API server", func(n *sitenodes.Node) bool {
		_, synced, ready := n.Served()
		return synced && ready && s.isRight(n)
	})
}

// haveKept waits until all nodes have the pods of the checkpoint.
func (s *site) haveKept() {
	s.t.Helper()
	s.await("all nodes have their pods from the checkpoint", func(n *sitenodes.Node) bool {
		pods, synced, _ := n.Served()
		return synced && pods == podsEach
	})
	s.noneLost("with the checkpoint")
}

// noneLost fails the test if a node does not run all of its pods.
func (s *site) noneLost(when string) {
	s.t.Helper()
	for _, n := range s.nodes {
		if got := n.Running(); len(got) != podsEach || n.Stops() != 0 {
			s.t.Errorf("%s: %s runs %q and has stopped %d pods, want %d and 0", when, n.Name, got, n.Stops(), podsEach)
		}
	}
}

func (s *site) stopNodes() {
	s.t.Helper()
	for _, n := range s.nodes {
		must(s.t, n.Stop())
	}
}

func (s *site) startNodes() {
	s.t.Helper()
	for _, n := range s.nodes {
		must(s.t, n.Start())
	}
}

// outageVariable is the variable with the least duration of an outage: the restarts are repeated until it is over.
const outageVariable = "QUARTET_SITE_OUTAGE"

// betweenRestarts is the pause before restarts are repeated.
const betweenRestarts = 20 * time.Second

// whileCut cuts the line while restarts are done once, or again and again for as long as outageVariable says.
func whileCut(t *testing.T, uplink *cluster.Proxy, restart func()) {
	t.Helper()
	length, err := time.ParseDuration(cmp.Or(os.Getenv(outageVariable), "0s"))
	if err != nil {
		t.Fatalf("%s: %v", outageVariable, err)
	}
	uplink.Refuse(t)
	over := time.Now().Add(length)
	for {
		restart()
		left := time.Until(over)
		if left <= 0 {
			return
		}
		<-time.After(min(left, betweenRestarts))
	}
}

// TestFiftyNodesWhileTheLineIsCut: the line to the API server is cut while configmux and all nodes are killed and
// started in every order. No node loses a pod, and when the line is back, each node does what has changed meanwhile.
// The line is cut for as long as the restarts take. Longer outages are for manual runs:
//
//	QUARTET_SITE_OUTAGE=10m go test -count 1 -timeout 30m -run WhileTheLineIsCut ./test/site
func TestFiftyNodesWhileTheLineIsCut(t *testing.T) {
	s := newSite(t)
	s.populate(nodeCount, s.configmux.Address)
	must(t, s.configmux.Start())
	s.startNodes()
	s.haveAll()
	s.hasCheckpoints()

	rounds := []struct {
		name string
		do   func()
	}{
		{"configmux restarts", func() {
			must(t, s.configmux.Kill())
			must(t, s.configmux.Start())
		}},
		{"the nodes restart", func() {
			s.stopNodes()
			s.startNodes()
		}},
		{"all restart, configmux last", func() {
			s.stopNodes()
			must(t, s.configmux.Kill())
			s.startNodes()
			s.noneLost("without configmux")
			must(t, s.configmux.Start())
		}},
		{"all restart, configmux first", func() {
			s.stopNodes()
			must(t, s.configmux.Kill())
			must(t, s.configmux.Start())
			eventually.That(t, "configmux serves", func() bool { return s.configmux.Serving(t.Context()) })
			s.startNodes()
		}},
	}
	whileCut(t, s.uplink, func() {
		for _, round := range rounds {
			round.do()
			s.haveKept()
			s.noneLost(round.name)
		}
	})

	s.change()
	s.uplink.Accept(t)
	s.haveAll()
}
