package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/metrics"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/fakesite"
	"github.com/quartet-node/quartet/test/freeport"
	"github.com/quartet-node/quartet/test/harness"
)

type fakeConfig struct {
	configv1.UnimplementedConfigServiceServer
	sources []*configv1.Source
}

func (f *fakeConfig) ListSources(context.Context, *configv1.ListSourcesRequest) (*configv1.ListSourcesResponse, error) {
	return &configv1.ListSourcesResponse{Sources: f.sources}, nil
}

type fakePLEG struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
	health *lifecyclev1.GetHealthResponse
}

func (f *fakePLEG) GetHealth(context.Context, *lifecyclev1.GetHealthRequest) (*lifecyclev1.GetHealthResponse, error) {
	return f.health, nil
}

type fakeEngine struct {
	enginev1.UnimplementedEngineServiceServer
	health *enginev1.GetHealthResponse
}

func (f *fakeEngine) GetHealth(context.Context, *enginev1.GetHealthRequest) (*enginev1.GetHealthResponse, error) {
	return f.health, nil
}

type fakeNode struct {
	nodev1.UnimplementedNodeServiceServer
	condition v1.NodeCondition
}

func (f *fakeNode) GetHealth(context.Context, *nodev1.GetHealthRequest) (*nodev1.GetHealthResponse, error) {
	return &nodev1.GetHealthResponse{Healthy: true}, nil
}

func (f *fakeNode) GetNode(context.Context, *nodev1.GetNodeRequest) (*nodev1.GetNodeResponse, error) {
	if f.condition.Type == "" {
		return nil, status.Error(codes.Unavailable, "no Node has been computed yet")
	}
	object := v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{f.condition}}}
	data, err := object.Marshal()
	return &nodev1.GetNodeResponse{Node: &nodev1.Node{Node: data}}, err
}

// node has four services that report that they are healthy, unless a test changes that before it starts them.
type node struct {
	config *fakeConfig
	pleg   *fakePLEG
	engine *fakeEngine
	node   *fakeNode
	health map[layout.Service]*rpc.Health
}

func wellNode() *node {
	n := &node{
		config: &fakeConfig{}, pleg: &fakePLEG{health: &lifecyclev1.GetHealthResponse{Healthy: true}},
		engine: &fakeEngine{health: &enginev1.GetHealthResponse{Healthy: true}},
		node:   &fakeNode{condition: v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		health: map[layout.Service]*rpc.Health{},
	}
	for _, s := range layout.Services() {
		n.health[s] = rpc.NewHealth()
	}
	return n
}

// start serves the named services, or all, on the real sockets of a state directory.
func (n *node) start(t *testing.T, l layout.Layout, services ...layout.Service) {
	t.Helper()
	if len(services) == 0 {
		services = layout.Services()
	}
	for _, s := range services {
		serve(t, func(ctx context.Context, ready func()) error {
			return rpc.Serve(
				ctx,
				rpc.Config{Address: l.Address(s), Health: n.health[s], Ready: ready, Register: func(server *grpc.Server) {
					switch s {
					case layout.ConfigMux:
						configv1.RegisterConfigServiceServer(server, n.config)
					case layout.PLEG:
						lifecyclev1.RegisterLifecycleServiceServer(server, n.pleg)
					case layout.SyncLoop:
						enginev1.RegisterEngineServiceServer(server, n.engine)
					case layout.NodeStatus:
						nodev1.RegisterNodeServiceServer(server, n.node)
					}
				}},
			)
		})
	}
}

// serve runs a server until the test ends, and returns when it is ready.
func serve(t *testing.T, run func(ctx context.Context, ready func()) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- run(ctx, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
}

// ask returns the findings of the services' checks.
func ask(t *testing.T, p *patient) []machine.Finding {
	t.Helper()
	var all []machine.Finding
	for _, c := range p.serviceChecks() {
		all = append(all, c.run(t.Context())...)
	}
	return all
}

func TestNoNodeIsOneLineAndNoFault(t *testing.T) {
	dir := harness.ShortDir(t)
	findings := ask(t, examine(t, dir, nil))
	if len(findings) != 1 {
		t.Fatalf("ask() = %+v, want exactly one", findings)
	}
	expect(t, findings[0], machine.OK, "none in "+dir, "quartet up --detach --state-dir "+dir)
}

func TestANodeThatIsWell(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	wellNode().start(t, p.layout)
	findings := ask(t, p)
	if len(findings) != 5 {
		t.Errorf("got %+v, want one for each service and one for the node", findings)
	}
	for _, f := range findings {
		expect(t, f, machine.OK)
	}
	expect(t, find(t, findings, "pleg")[0], machine.OK, p.layout.Socket(layout.PLEG), "pid")
	expect(t, find(t, findings, "node")[0], machine.OK, "Ready")
}

func TestWhatServicesSayIsFound(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	n := wellNode()
	n.config.sources = []*configv1.Source{
		{
			Name:   "file",
			Errors: []*configv1.SourceError{{Path: "/m/web.yaml", Pod: "default/web", Message: "no image: give it one"}},
		},
	}
	n.health[layout.ConfigMux].Set("source/file", "the manifests have not been read")
	n.pleg.health = &lifecyclev1.GetHealthResponse{
		Reasons: []string{"the runtime does not answer: is it running?", "no relist has finished"},
	}
	n.engine.health = &enginev1.GetHealthResponse{Healthy: true, Reasons: []string{"waiting for pleg"}}
	n.node.condition = v1.NodeCondition{
		Type:    v1.NodeReady,
		Status:  v1.ConditionFalse,
		Reason:  "KubeletNotReady",
		Message: "pleg is not healthy",
	}
	n.start(t, p.layout)
	findings := ask(t, p)

	configmux := find(t, findings, "configmux")
	expect(t, configmux[0], machine.Warning, "waits for source/file")
	expect(
		t,
		configmux[1],
		machine.Warning,
		"/m/web.yaml: default/web: no image",
		"give it one",
		"quartet get sources --state-dir",
	)
	pleg := find(t, findings, "pleg")
	if len(pleg) != 2 {
		t.Errorf("got %+v, want a finding for each reason", pleg)
	}
	expect(t, pleg[0], machine.Fault, "is it running?", "log")
	expect(t, find(t, findings, "syncloop")[0], machine.Warning, "waiting for pleg")
	expect(t, find(t, findings, "node")[0], machine.Fault, "KubeletNotReady", "pleg is not healthy")
}

func TestAServiceThatIsAway(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	wellNode().start(t, p.layout, layout.ConfigMux, layout.PLEG)
	// A killed process leaves its socket.
	if err := os.MkdirAll(p.layout.ServiceDir(layout.SyncLoop), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.layout.Socket(layout.SyncLoop), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, p.layout.NodeLog(), "", 0o600)
	findings := ask(t, p)
	expect(t, find(t, findings, "pleg")[0], machine.OK)
	expect(
		t,
		find(t, findings, "syncloop")[0],
		machine.Fault,
		"nobody listens",
		"systemctl start quartet-syncloop",
		p.layout.NodeLog(),
	)
	expect(t, find(t, findings, "nodestatus")[0], machine.Fault, "is not there", "quartet up --detach --state-dir")
	expect(t, find(t, findings, "node")[0], machine.Fault, "nodestatus", "cannot be asked")
}

// A process that has the socket and does not answer: it is suspended, or hangs.
func TestAServiceThatHangs(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	if err := os.MkdirAll(p.layout.ServiceDir(layout.PLEG), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", p.layout.Socket(layout.PLEG))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	})
	var all []machine.Finding
	// Shorter than the timeout of a check, because nothing here would ever answer.
	err = runner{
		timeout: checkTimeout / 10,
		atOnce:  1,
	}.run(
		t.Context(),
		p.serviceChecks(),
		func(findings []machine.Finding) error {
			all = append(all, findings...)
			return nil
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, find(t, all, "pleg")[0], machine.Fault, "does not answer", "kill -9")
}

func TestSocketsHaveTheirModeAndOwner(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	wellNode().start(t, p.layout)
	if err := os.Chmod(p.layout.Socket(layout.PLEG), 0o666); err != nil {
		t.Fatal(err)
	}
	findings := ask(t, p)
	expect(t, find(t, findings, "pleg")[0], machine.Warning, "mode 0666", "chmod 0660 "+p.layout.Socket(layout.PLEG))
	expect(t, find(t, findings, "syncloop")[0], machine.OK)

	foreign := p.judgeService(
		serviceFacts{
			service: layout.PLEG,
			socket:  "/s/pleg.sock",
			mode:    fs.ModeSocket | 0o660,
			uid:     7,
			owner:   rpc.Owner{PID: 3, UID: 8},
		},
	)
	expect(t, foreign[0], machine.Warning, "user 7's", "user 8's", "chown 8 /s/pleg.sock")
	forbidden := p.judgeService(serviceFacts{service: layout.PLEG, socket: "/s/pleg.sock", socketErr: fs.ErrPermission})
	expect(t, forbidden[0], machine.Fault, "as root")
	file := p.judgeService(serviceFacts{service: layout.PLEG, socket: "/s/pleg.sock"})
	expect(t, file[0], machine.Fault, "not a socket", "move it away")
	open := p.judgeService(
		serviceFacts{
			service: layout.ConfigMux, socket: "/s/configmux/configmux.sock", mode: fs.ModeSocket | 0o660, uid: 8,
			owner: rpc.Owner{PID: 3, UID: 8}, dirMode: fs.ModeDir | 0o775, dirUID: 8,
		},
	)
	expect(t, open[0], machine.Warning, "may make names in /s/configmux", "chown 8 /s/configmux && chmod go-w")
	silent := p.judgeService(serviceFacts{service: layout.PLEG, mode: fs.ModeSocket | 0o660, unhealthy: true})
	expect(t, silent[0], machine.Fault, "not why")
}

// A process of v0.1.0 has its socket in the directory that all services share.
func TestAServiceOfTheEarlierVersion(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	wellNode().start(t, p.layout)
	socket := p.layout.Socket(layout.PLEG)
	earlier := layout.EarlierSocket(socket)
	if err := os.RemoveAll(earlier); err != nil { // the second name that root gives it
		t.Fatal(err)
	}
	if err := os.Rename(socket, earlier); err != nil {
		t.Fatal(err)
	}
	expect(t, find(t, ask(t, p), "pleg")[0], machine.OK, "serving at "+earlier)
}

func TestVersions(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	if got := judgeVersions(p.askVersions(t.Context())); got != nil {
		t.Errorf("nothing is known, and it says %+v", got)
	}
	for _, s := range []layout.Service{layout.PLEG, layout.SyncLoop} {
		address := "unix://" + p.layout.MetricsSocket(s)
		serve(t, func(ctx context.Context, ready func()) error {
			return metrics.Serve(
				ctx,
				metrics.ServeConfig{Address: address, Registry: metrics.New(s).Registry, Ready: func(net.Addr) { ready() }},
			)
		})
	}
	same := judgeVersions(p.askVersions(t.Context()))
	if len(same) != 1 {
		t.Fatalf("judgeVersions() = %+v, want exactly one", same)
	}
	expect(t, same[0], machine.OK, "pleg unknown, syncloop unknown") // a test's build has no version
	expect(
		t,
		judgeVersions(map[layout.Service]string{layout.PLEG: "v1", layout.SyncLoop: "v2"})[0],
		machine.Warning,
		"pleg v1, syncloop v2",
		"restart",
	)
	if version, err := versionIn(
		strings.NewReader(
			"# HELP\nquartet_build_info{go_version=\"go1\",kubernetes_version=\"v9\",service=\"pleg\",version=\"v3\"} 1\n",
		),
	); err != nil ||
		version != "v3" {
		t.Errorf("versionIn() = %q (%v), want %q", version, err, "v3")
	}
}

func TestANodeThatIsNotComputedYet(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	n := wellNode()
	n.node.condition = v1.NodeCondition{}
	n.start(t, p.layout)
	expect(t, find(t, ask(t, p), "node")[0], machine.Fault, "no Node has been computed yet")
	expect(t, judgeNode(errors.New("x")), machine.Fault, "x")
}

// TestANodeOfASiteHasNoConfigmuxOfItsOwn, which is no fault; one that cannot be reached is.
func TestANodeOfASiteHasNoConfigmuxOfItsOwn(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	n := wellNode()
	n.config.sources = []*configv1.Source{{Name: "api", Errors: []*configv1.SourceError{{Pod: "shop/web", Message: "no image"}}}}
	n.start(t, p.layout, layout.PLEG, layout.SyncLoop, layout.NodeStatus)
	site := fakesite.Serve(t, n.config)
	site.FollowedBy(t, p.layout.StateDir())
	expect(t, find(t, ask(t, p), "configmux")[0], machine.Warning, "no image", "quartet get sources")

	n.config.sources = nil
	findings := ask(t, p)
	for _, f := range findings {
		expect(t, f, machine.OK)
	}
	if len(findings) != 5 {
		t.Errorf("got %+v, want one for each service and one for the node", findings)
	}
	expect(t, find(t, findings, "configmux")[0], machine.OK, "configmux at "+site.Address, "serves this node")

	if err := os.Remove(site.Node.Cert); err != nil {
		t.Fatal(err)
	}
	expect(t, find(t, ask(t, p), "configmux")[0], machine.Warning, site.Node.Cert, site.Address, "as root")
}

// TestAConfigmuxOfASiteThatIsNotKnown: syncloop runs in a container, so that its command line cannot be read. It says
// itself whether it follows a configmux, and then one that has no socket here is no fault.
func TestAConfigmuxOfASiteThatIsNotKnown(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	n := wellNode()
	n.start(t, p.layout, layout.PLEG, layout.SyncLoop, layout.NodeStatus)
	n.health[layout.SyncLoop].Set("configmux", "configmux has not sent all pods yet: check that it runs")
	expect(t, find(t, ask(t, p), "configmux")[0], machine.Fault, "is not there", "--configmux-address of syncloop")

	n.health[layout.SyncLoop].Set("configmux", "")
	expect(t, find(t, ask(t, p), "configmux")[0], machine.OK, "syncloop follows one that is not of this machine")
}

func TestTheConfigmuxOfASiteIsAway(t *testing.T) {
	p := examine(t, harness.ShortDir(t), nil)
	wellNode().start(t, p.layout, layout.PLEG, layout.SyncLoop, layout.NodeStatus)
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	site := fakesite.Serve(t, &fakeConfig{})
	site.Address = fmt.Sprintf("127.0.0.1:%d", port)
	site.FollowedBy(t, p.layout.StateDir())
	expect(t, find(t, ask(t, p), "configmux")[0], machine.Fault, site.Address, "refused", "pods stay as they are")
}
