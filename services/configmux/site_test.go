package configmux

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/peertls"
	"github.com/quartet-node/quartet/internal/rights"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/authority"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/freeport"
)

// siteRig is a configmux of a site, with the authority of its nodes' certificates.
type siteRig struct {
	*member

	authority *authority.Authority
}

// newSiteRig returns the configmux of the nodes; kubeconfig names an API server.
func newSiteRig(t *testing.T, c *cluster.Cluster, nodes nodeconfig.Nodes, kubeconfig string) *siteRig {
	t.Helper()
	r := &siteRig{member: newMember(t, c, "", kubeconfig), authority: authority.New(t, "site")}
	r.status.stop() // a site does without
	port, err := freeport.Find()
	must(t, err)
	r.cfg.Nodes = nodes
	r.cfg.Network = peertls.Listen{
		Address: fmt.Sprintf("127.0.0.1:%d", port), Nodes: true,
		Files: r.authority.Issue(t, t.TempDir(),
			authority.Request{Name: "configmux", Hosts: []string{"configmux", "127.0.0.1"}}),
		Names: rights.Names{rights.Observe: {"laptop"}},
	}
	return r
}

// connect returns a connection with a certificate.
func (r *siteRig) connect(t *testing.T, by *authority.Authority, request authority.Request) *grpc.ClientConn {
	t.Helper()
	dir := t.TempDir()
	authority.Trust(t, filepath.Join(dir, "ca.crt"), r.authority)
	files := by.Issue(t, dir, request)
	conn, err := rpc.DialService(nodeconfig.ConfigMux, r.cfg.Network.Address, files)
	must(t, err)
	t.Cleanup(func() { must(t, conn.Close()) })
	return conn
}

// as returns the configmux that a node sees.
func (r *siteRig) as(t *testing.T, node string) *siteNode {
	t.Helper()
	conn := r.connect(t, r.authority, authority.Request{Name: cluster.NodeUser(node), Groups: []string{cluster.Nodes}})
	return &siteNode{t: t, name: node, client: configv1.NewConfigServiceClient(conn)}
}

// siteNode is a node of a site.
type siteNode struct {
	t      *testing.T
	name   string
	client configv1.ConfigServiceClient
}

// served waits until the node is served. Until configmux knows the nodes of a site, a syncloop retries.
func (n *siteNode) served() {
	n.t.Helper()
	eventually.That(n.t, n.name+" is served", func() bool {
		_, err := n.client.ListPods(n.t.Context(), &configv1.ListPodsRequest{}, grpc.WaitForReady(true))
		return err == nil
	})
}

// pods returns the names of the node's pods, in the order of their names.
func (n *siteNode) pods() []string {
	n.t.Helper()
	answer, err := n.client.ListPods(n.t.Context(), &configv1.ListPodsRequest{}, grpc.WaitForReady(true))
	must(n.t, err)
	var names []string
	for _, u := range answer.GetPods() {
		pod := decode(n.t, u)
		if pod.Spec.NodeName != n.name {
			n.t.Fatalf("%s sees the pod %s of %s", n.name, pod.Name, pod.Spec.NodeName)
		}
		names = append(names, pod.Name)
	}
	return names
}

// comesTo waits until the node has these pods.
func (n *siteNode) comesTo(want ...string) {
	n.t.Helper()
	eventually.That(n.t, fmt.Sprintf("%s has %q", n.name, want), func() bool { return slices.Equal(n.pods(), want) })
}

// subscribe follows the stream of the node's pods.
func (n *siteNode) subscribe(token []byte) *recorder {
	n.t.Helper()
	n.served()
	ctx, cancel := context.WithTimeout(n.t.Context(), slowly)
	n.t.Cleanup(cancel)
	out, err := n.client.WatchPodUpdates(
		ctx, &configv1.WatchPodUpdatesRequest{ResumeToken: token}, grpc.WaitForReady(true),
	)
	must(n.t, err)
	return &recorder{t: n.t, next: func() *configv1.WatchPodUpdatesResponse {
		n.t.Helper()
		m, err := out.Recv()
		must(n.t, err)
		return m
	}}
}

func TestNodesOfASiteGetTheirOwnPods(t *testing.T) {
	c := shared.Cluster(t)
	r := newSiteRig(t, c, nodeconfig.Nodes{All: true}, c.Kubeconfig(t, "site", cluster.Masters))
	r.create("sa-one", "site-a")
	r.run()
	a, b := r.as(t, "site-a"), r.as(t, "site-b")
	follows := a.subscribe(nil)
	follows.pods("ADD sa-one i:1")
	follows.ready()
	none := b.subscribe(nil)
	none.ready() // a node without pods is known to have none

	r.create("sb-one", "site-b")
	none.pods("ADD sb-one i:1")
	r.update("sa-one", image("i:2"))
	follows.pods("UPDATE sa-one i:2")
	r.create("sa-two", "site-a")
	follows.pods("ADD sa-two i:1")
	r.remove("sb-one", 0)
	none.pods("REMOVE sb-one i:1")
	a.comesTo("sa-one", "sa-two")
	b.comesTo()

	// A node sees its own source, and who is no node sees those of all.
	own, err := a.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
	must(t, err)
	if got := own.GetSources(); len(got) != 1 || got[0].GetNode() != "site-a" || got[0].GetPods() != 2 ||
		!got[0].GetReady() || got[0].GetMode() != "watch" || got[0].GetTarget() != c.URL() {
		t.Errorf("site-a has the sources %v", got)
	}
	laptop := configv1.NewConfigServiceClient(r.connect(t, r.authority, authority.Request{Name: "laptop"}))
	for name, client := range map[string]configv1.ConfigServiceClient{"the socket": r.client, "an observer": laptop} {
		all, err := client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
		must(t, err)
		var nodes []string
		for _, s := range all.GetSources() {
			nodes = append(nodes, s.GetNode())
		}
		if !slices.Contains(nodes, "site-a") || !slices.Contains(nodes, "site-b") {
			t.Errorf("%s has the sources of %q", name, nodes)
		}
		pods, err := client.ListPods(t.Context(), &configv1.ListPodsRequest{})
		must(t, err)
		if len(pods.GetPods()) < 2 {
			t.Errorf("%s has %d pods", name, len(pods.GetPods()))
		}
		watch, err := client.WatchPodUpdates(t.Context(), &configv1.WatchPodUpdatesRequest{})
		must(t, err)
		if _, err := watch.Recv(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a watch by %s: %v, want %s", name, err, codes.FailedPrecondition)
		}
	}
}

// TestAnIntruderOfASite tries to see what another node has.
func TestAnIntruderOfASite(t *testing.T) {
	c := shared.Cluster(t)
	r := newSiteRig(t, c, nodeconfig.Nodes{Names: []string{"in-a", "in-b"}}, c.Kubeconfig(t, "site", cluster.Masters))
	r.create("ia-one", "in-a")
	r.create("ib-one", "in-b")
	r.run()
	a, b := r.as(t, "in-a"), r.as(t, "in-b")
	a.comesTo("ia-one")
	b.comesTo("ib-one")

	// A token of another node begins a snapshot of one's own.
	var token []byte
	for theirs := b.subscribe(nil); len(token) == 0; {
		token = theirs.next().GetFrame().GetResumeToken()
	}
	a.subscribe(token).pods("ADD ia-one i:1")

	stranger := authority.New(t, "stranger")
	groups := []string{cluster.Nodes}
	for name, tc := range map[string]struct {
		by      *authority.Authority
		request authority.Request
		want    codes.Code
	}{
		"a node of another site":     {r.authority, authority.Request{Name: cluster.NodeUser("in-c"), Groups: groups}, codes.PermissionDenied},
		"without the group of nodes": {r.authority, authority.Request{Name: cluster.NodeUser("in-b")}, codes.PermissionDenied},
		"with another group":         {r.authority, authority.Request{Name: cluster.NodeUser("in-b"), Groups: []string{"system:masters"}}, codes.PermissionDenied},
		"the name as a DNS name":     {r.authority, authority.Request{Name: "x", Hosts: []string{"system:node:in-b", "in-b"}, Groups: groups}, codes.PermissionDenied},
		"the bare name":              {r.authority, authority.Request{Name: "in-b", Groups: groups}, codes.PermissionDenied},
		"a path":                     {r.authority, authority.Request{Name: cluster.NodeUser("../site/in-b"), Groups: groups}, codes.PermissionDenied},
		"no name":                    {r.authority, authority.Request{Name: cluster.NodeUser(""), Groups: groups}, codes.PermissionDenied},
		"upper case":                 {r.authority, authority.Request{Name: cluster.NodeUser("IN-B"), Groups: groups}, codes.PermissionDenied},
		"of another authority":       {stranger, authority.Request{Name: cluster.NodeUser("in-b"), Groups: groups}, codes.Unavailable},
		"expired":                    {r.authority, authority.Request{Name: cluster.NodeUser("in-b"), Groups: groups, For: -1}, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			conn := r.connect(t, tc.by, tc.request)
			client := configv1.NewConfigServiceClient(conn)
			watch, err := client.WatchPodUpdates(t.Context(), &configv1.WatchPodUpdatesRequest{ResumeToken: token})
			if err == nil {
				_, err = watch.Recv()
			}
			_, listErr := client.ListPods(t.Context(), &configv1.ListPodsRequest{})
			_, sourcesErr := client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
			for call, err := range map[string]error{"WatchPodUpdates": err, "ListPods": listErr, "ListSources": sourcesErr} {
				if status.Code(err) != tc.want {
					t.Errorf("%s: %v, want %s", call, err, tc.want)
				}
			}
		})
	}

	// A node may do nothing but see what is its own.
	conn := r.connect(t, r.authority, authority.Request{Name: cluster.NodeUser("in-a"), Groups: groups})
	client := configv1.NewConfigServiceClient(conn)
	for call, try := range map[string]func() error{
		"ApplyPod": func() error {
			_, err := client.ApplyPod(t.Context(), &configv1.ApplyPodRequest{})
			return err
		},
		"DeletePod": func() error {
			_, err := client.DeletePod(t.Context(), &configv1.DeletePodRequest{Namespace: "default", Name: "ib-one"})
			return err
		},
		"RotateSecretsKey": func() error {
			_, err := client.RotateSecretsKey(t.Context(), &configv1.RotateSecretsKeyRequest{})
			return err
		},
		"DumpGoroutines": func() error {
			watch, err := debugv1.NewDebugServiceClient(conn).DumpGoroutines(t.Context(), &debugv1.DumpGoroutinesRequest{})
			if err == nil {
				_, err = watch.Recv()
			}
			return err
		},
	} {
		if err := try(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s by a node: %v, want %s", call, err, codes.PermissionDenied)
		}
	}
}

// TestNodesWithALabelAreASite: a node is served while it has the label, and one that has lost it keeps what it has,
// because its calls are refused.
func TestNodesWithALabelAreASite(t *testing.T) {
	c := shared.Cluster(t)
	r := newSiteRig(t, c, nodeconfig.Nodes{Selector: "site=berlin"}, c.Kubeconfig(t, "site", cluster.Masters))
	nodes := r.admin.CoreV1().Nodes()
	for node, site := range map[string]string{"label-a": "berlin", "label-b": "paris"} {
		_, err := nodes.Create(t.Context(),
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"site": site}}}, metav1.CreateOptions{})
		must(t, err)
	}
	r.create("la-one", "label-a")
	r.create("lb-one", "label-b")
	r.run()
	a, b := r.as(t, "label-a"), r.as(t, "label-b")
	a.subscribe(nil).pods("ADD la-one i:1")
	refused := func(n *siteNode) bool {
		_, err := n.client.ListPods(t.Context(), &configv1.ListPodsRequest{})
		return status.Code(err) == codes.PermissionDenied
	}
	eventually.That(t, "the other node is refused", func() bool { return refused(b) })
	move := func(node, site string) {
		t.Helper()
		_, err := nodes.Patch(t.Context(), node, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{"site":%q}}}`, site), metav1.PatchOptions{})
		must(t, err)
	}
	move("label-b", "berlin")
	eventually.That(t, "the node with the label is served", func() bool { return !refused(b) })
	b.comesTo("lb-one")
	move("label-a", "paris")
	eventually.That(t, "the node without the label is refused", func() bool { return refused(a) })
	b.comesTo("lb-one")
}

// TestASiteWithoutItsAPIServer: a restarted configmux of a site serves each node from its checkpoint, removes nothing,
// and goes on when the API server is back.
func TestASiteWithoutItsAPIServer(t *testing.T) {
	c := shared.Cluster(t)
	for name, nodes := range map[string]nodeconfig.Nodes{
		"all": {All: true}, "list": {Names: []string{"cut-list-a", "cut-list-b"}}, "labels": {Selector: "cut=yes"},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := c.Proxy(t)
			r := newSiteRig(t, c, nodes, proxy.Kubeconfig(t, "site", cluster.Masters))
			var served []*siteNode
			for _, which := range []string{"a", "b"} {
				node := "cut-" + name + "-" + which
				labeled := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{"cut": "yes"}}}
				_, err := r.admin.CoreV1().Nodes().Create(t.Context(), labeled, metav1.CreateOptions{})
				must(t, err)
				r.create(node+"-one", node)
				served = append(served, r.as(t, node))
			}
			r.run()
			for _, n := range served {
				s := n.subscribe(nil)
				s.pods("ADD " + n.name + "-one i:1")
				s.ready()
			}
			r.stop()
			proxy.Refuse(t)
			r.run()
			for _, n := range served {
				n.subscribe(nil).pods("RESTORE " + n.name + "-one i:1")
				sources, err := n.client.ListSources(t.Context(), &configv1.ListSourcesRequest{})
				must(t, err)
				s := sources.GetSources()[0]
				if s.GetReady() || s.GetPods() != 1 {
					t.Errorf("%s: %v", n.name, s)
				}
			}
			health, err := grpc_health_v1.NewHealthClient(r.conn).
				Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "source/api"})
			must(t, err)
			if got := health.GetStatus(); got != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
				t.Errorf("the source is %s without a list, want %s", got, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			}
			r.create(served[0].name+"-two", served[0].name)
			proxy.Accept(t)
			served[0].comesTo(served[0].name+"-one", served[0].name+"-two")
			served[1].comesTo(served[1].name + "-one")
		})
	}
}
