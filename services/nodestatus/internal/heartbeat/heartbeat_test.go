package heartbeat

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/eviction"
	"github.com/quartet-node/quartet/services/nodestatus/internal/facts"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePLEG answers as the test sets it, or not at all.
type fakePLEG struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
	mu     sync.Mutex
	answer *lifecyclev1.GetHealthResponse
	hangs  bool
}

func (f *fakePLEG) set(answer *lifecyclev1.GetHealthResponse, hangs bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer, f.hangs = answer, hangs
}

func (f *fakePLEG) GetHealth(
	ctx context.Context,
	_ *lifecyclev1.GetHealthRequest,
) (*lifecyclev1.GetHealthResponse, error) {
	f.mu.Lock()
	answer, hangs := f.answer, f.hangs
	f.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return answer, nil
}

type fakeSyncLoop struct {
	enginev1.UnimplementedEngineServiceServer
}

func (fakeSyncLoop) GetHealth(context.Context, *enginev1.GetHealthRequest) (*enginev1.GetHealthResponse, error) {
	return &enginev1.GetHealthResponse{Healthy: true, LastTurnAt: timestamppb.Now()}, nil
}

var (
	wellPLEG = &lifecyclev1.GetHealthResponse{
		Healthy: true, LastRelistAt: timestamppb.Now(),
		Runtime: &lifecyclev1.Runtime{Name: "containerd", Version: "2", Ready: true, NetworkReady: true},
	}
	illPLEG = &lifecyclev1.GetHealthResponse{
		Healthy:      true,
		LastRelistAt: timestamppb.Now(),
		Runtime: &lifecyclev1.Runtime{
			Name:                "containerd",
			Version:             "2",
			Ready:               true,
			NetworkReadyMessage: "install a CNI configuration",
		},
	}
	newPLEG = &lifecyclev1.GetHealthResponse{Reasons: []string{"no relist has finished yet"}}
)

// rig is a heart with fake peers that are served over unix sockets.
type rig struct {
	t              *testing.T
	clock          *clocktesting.FakeClock
	pleg           *fakePLEG
	plegAddress    string
	plegConn, loop *grpc.ClientConn
	health         *rpc.Health
	cfg            Config
	registry       *prometheus.Registry

	mu        sync.Mutex
	published []nodeobject.State
	saves     int
}

func newRig(t *testing.T) *rig {
	dir := t.TempDir()
	r := &rig{
		t:           t,
		clock:       clocktesting.NewFakeClock(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)),
		pleg:        &fakePLEG{answer: wellPLEG},
		plegAddress: "unix://" + filepath.Join(dir, "pleg.sock"),
		health:      rpc.NewHealth(),
		registry:    prometheus.NewRegistry(),
	}
	loopAddress := "unix://" + filepath.Join(dir, "syncloop.sock")
	r.serve(loopAddress, func(s *grpc.Server) { enginev1.RegisterEngineServiceServer(s, fakeSyncLoop{}) })
	r.plegConn, r.loop = dial(t, r.plegAddress), dial(t, loopAddress)
	r.cfg = Config{
		Settings: nodeobject.Settings{Name: "node-1", MaxPods: 10}, Period: 10 * time.Second,
		AskPLEG: AskPLEG(r.plegConn, r.plegAddress), AskSyncLoop: AskSyncLoop(r.loop, loopAddress), AskTimeout: time.Minute,
		ReadMachine: func() (facts.Machine, error) {
			return facts.Machine{CPUs: 2, MemoryBytes: 1 << 30, BootID: "boot-1"}, nil
		},
		ReadNow: func() (facts.Readings, error) { return facts.Readings{}, nil },
		Publish: func(state nodeobject.State) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.published = append(r.published, state)
		},
		Save: func(nodeobject.State) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.saves++
			return nil
		},
		Health: r.health, Clock: r.clock, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Metrics: NewMetrics(r.registry), Tracer: telemetry.Off(),
	}
	return r
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// serve serves until the test ends, or until stop is called.
func (r *rig) serve(address string, register func(*grpc.Server)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: address, Register: register, Health: rpc.NewHealth(), Logger: r.cfg.Logger, Ready: func() { close(ready) },
		})
	}()
	<-ready
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(stop)
	return stop
}

func (r *rig) servePLEG() (stop func()) {
	return r.serve(r.plegAddress, func(s *grpc.Server) { lifecyclev1.RegisterLifecycleServiceServer(s, r.pleg) })
}

// start runs the heart until the test ends.
func (r *rig) start() *Heart {
	heart := New(r.cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- heart.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
	return heart
}

func (r *rig) all() []nodeobject.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.published)
}

func (r *rig) last() (v1.NodeCondition, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.published) == 0 {
		return v1.NodeCondition{}, 0
	}
	conditions := r.published[len(r.published)-1].Node.Status.Conditions
	return conditions[len(conditions)-1], len(r.published)
}

// waiters is the number of waiters on the clock while the heart is idle: the requests of the two peers, and the heart
// itself.
const waiters = 3

// until advances the clock in steps of a quarter of a second, until a condition of the published Node holds. While a
// peer is being asked, the clock stands still, because the answer takes real time.
func (r *rig) until(what string, want func(ready v1.NodeCondition, published int) bool) v1.NodeCondition {
	r.t.Helper()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ready, published := r.last()
		if published > 0 && want(ready, published) {
			return ready
		}
		select {
		case <-deadline:
			r.t.Fatalf("waited for %s; the last of %d is %s %q", what, published, ready.Status, ready.Message)
		case <-tick.C:
			if r.clock.Waiters() == waiters {
				r.clock.Step(firstAskInterval)
			}
		}
	}
}

func (r *rig) untilReady(status v1.ConditionStatus, message string) v1.NodeCondition {
	r.t.Helper()
	return r.until("Ready="+string(status)+" with "+message, func(c v1.NodeCondition, _ int) bool {
		return c.Status == status && strings.Contains(c.Message, message)
	})
}

func TestFirstNodeIsReadyWhenPeersAre(t *testing.T) {
	r := newRig(t)
	r.servePLEG()
	heart := r.start()
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	if first := r.all()[0].Node.Status.Conditions[3]; first.Status != v1.ConditionTrue {
		t.Errorf("the first Node was not ready: %+v", first)
	}
	if err := heart.Overdue(); err != nil {
		t.Errorf("overdue: %v", err)
	}
	if waiting := r.health.Waiting(); len(waiting) > 0 {
		t.Errorf("waits for %q with all peers there, want none", waiting)
	}
}

func TestHeartBeatsEveryPeriodWithoutSavingEachTime(t *testing.T) {
	r := newRig(t)
	r.servePLEG()
	r.start()
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	begin := r.clock.Now()
	_, before := r.last()
	c := r.until("three more", func(_ v1.NodeCondition, n int) bool { return n >= before+3 })
	if took := r.clock.Now().Sub(begin); took < 20*time.Second {
		t.Errorf("three heartbeats came within %s, with a period of 10s and nothing that changed", took)
	}
	if !c.LastHeartbeatTime.After(begin) {
		t.Errorf("the last heartbeat is of %s", c.LastHeartbeatTime)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.saves != 1 {
		t.Errorf("saved %d times, want once: nothing but times has changed", r.saves)
	}
}

func TestPeerAwayFromTheStartIsNamed(t *testing.T) {
	r := newRig(t)
	r.start()
	c := r.untilReady(v1.ConditionFalse, "pleg is unreachable on "+r.plegAddress+": start it")
	if c.Reason != "KubeletNotReady" {
		t.Errorf("reason = %s, want %q", c.Reason, "KubeletNotReady")
	}
	if waiting := strings.Join(
		r.health.Waiting(),
		"\n",
	); !strings.Contains(waiting, "pleg is unreachable") ||
		strings.Contains(waiting, "syncloop") {
		t.Errorf("waits for %q, want text with %q and without %q", waiting, "pleg is unreachable", "syncloop")
	}
	begin := r.clock.Now()
	r.servePLEG()
	r.plegConn.ResetConnectBackoff() // its back-off uses the real clock
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	if took := r.clock.Now().Sub(begin); took > time.Minute {
		t.Errorf("it took %s of the clock to see that pleg had come", took)
	}
}

func TestUnhealthyPeerIsReportedBeforeTheNextPeriod(t *testing.T) {
	r := newRig(t)
	r.cfg.Period = time.Hour
	r.servePLEG()
	r.start()
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	begin := r.clock.Now()
	r.pleg.set(illPLEG, false)
	r.untilReady(v1.ConditionFalse, "the network of the container runtime is not ready: install a CNI configuration")
	r.pleg.set(wellPLEG, false)
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	if took := r.clock.Now().Sub(begin); took > time.Minute {
		t.Errorf("it took %s of the clock to see both changes", took)
	}
}

func TestHungPeerDoesNotStopTheHeart(t *testing.T) {
	r := newRig(t)
	r.cfg.AskTimeout = 200 * time.Millisecond
	r.servePLEG()
	r.start()
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	r.pleg.set(nil, true)
	r.untilReady(v1.ConditionTrue, "tolerating temporarily: pleg does not answer in time")
	_, before := r.last()
	r.until("more heartbeats", func(_ v1.NodeCondition, n int) bool { return n >= before+3 })
	r.untilReady(v1.ConditionFalse, "it hangs")
}

func TestRestartedPeerChangesNothing(t *testing.T) {
	r := newRig(t)
	stop := r.servePLEG()
	r.start()
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	stop()
	r.untilReady(v1.ConditionTrue, "is unreachable")
	r.pleg.set(newPLEG, false)
	r.servePLEG()
	// The connection returns after a back-off of up to a second of the real clock, which must not use up the time limit of
	// the fake one.
	r.plegConn.ResetConnectBackoff()
	r.untilReady(v1.ConditionTrue, "no relist has finished yet")
	r.pleg.set(wellPLEG, false)
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	for i, state := range r.all() {
		if c := state.Node.Status.Conditions[3]; c.Status != v1.ConditionTrue {
			t.Errorf("Node %d was not ready: %s", i, c.Message)
		}
	}
}

func readyNode(bootID string) nodeobject.State {
	node := &v1.Node{}
	node.Name = "node-1"
	node.Status.NodeInfo.BootID = bootID
	node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	return nodeobject.State{Node: node}
}

func TestNodeThatWasReadyStaysSoWhenAllAreRestarted(t *testing.T) {
	r := newRig(t)
	r.cfg.Previous = readyNode("boot-1")
	r.start()
	r.untilReady(v1.ConditionTrue, "tolerating")
	r.untilReady(v1.ConditionFalse, "start it")
}

func TestNodeThatWasReadyBeforeTheMachineStartedIsNot(t *testing.T) {
	r := newRig(t)
	r.cfg.Previous = readyNode("boot-0")
	r.start()
	r.untilReady(v1.ConditionFalse, "start it")
	for i, state := range r.all() {
		if c := state.Node.Status.Conditions[3]; c.Status == v1.ConditionTrue {
			t.Errorf("Node %d was ready: %s", i, c.Message)
		}
	}
}

func TestMachineThatCannotBeReadIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.servePLEG()
	var tries int
	read := r.cfg.ReadMachine
	r.cfg.ReadMachine = func() (facts.Machine, error) {
		if tries++; tries < 3 {
			return facts.Machine{}, errors.New("no /proc")
		}
		return read()
	}
	heart := r.start()
	if err := heart.Overdue(); err == nil {
		t.Error("not overdue before the first Node")
	}
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
}

func TestReadingThatFailsIsInTheNode(t *testing.T) {
	r := newRig(t)
	r.servePLEG()
	thresholds, err := eviction.ThresholdsOf(
		&kubeletconfigv1beta1.KubeletConfiguration{EvictionHard: map[string]string{"memory.available": "100Mi"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	r.cfg.Settings.Thresholds = thresholds
	r.cfg.ReadNow = func() (facts.Readings, error) { return facts.Readings{}, errors.New("no /proc") }
	r.start()
	r.untilReady(v1.ConditionTrue, "kubelet is posting ready status")
	if memory := r.all()[0].Node.Status.Conditions[0]; memory.Status != v1.ConditionUnknown {
		t.Errorf("memory pressure is %s, want Unknown", memory.Status)
	}
}

// A client may request the health as soon as it has the first Node.
func TestNotOverdueOnceTheFirstNodeIsPublished(t *testing.T) {
	r := newRig(t)
	r.servePLEG()
	var heart *Heart
	made, overdue := make(chan struct{}), make(chan error, 1)
	publish := r.cfg.Publish
	r.cfg.Publish = func(state nodeobject.State) {
		<-made
		select {
		case overdue <- heart.Overdue():
		default: // only the first Node counts
		}
		publish(state)
	}
	heart = r.start()
	close(made)
	r.until("the first Node", func(_ v1.NodeCondition, n int) bool { return n == 1 })
	if err := <-overdue; err != nil {
		t.Errorf("overdue while the first Node is published: %v", err)
	}
}

func TestOverdueWhenTheReadingHangs(t *testing.T) {
	r := newRig(t)
	r.servePLEG()
	release, hung := make(chan struct{}), make(chan struct{})
	defer close(release)
	reads := 0
	r.cfg.ReadNow = func() (facts.Readings, error) {
		if reads++; reads == 3 {
			close(hung)
			<-release
		}
		return facts.Readings{}, nil
	}
	heart := r.start()
	r.until("the second heartbeat", func(_ v1.NodeCondition, n int) bool { return n == 2 })
	r.clock.Step(r.cfg.Period)
	<-hung
	if err := heart.Overdue(); err != nil {
		t.Errorf("overdue already: %v", err)
	}
	r.clock.Step(3 * r.cfg.Period)
	if err := heart.Overdue(); err == nil || !strings.Contains(err.Error(), "reading the machine hangs") {
		t.Errorf("overdue: %v, want an error with %q", err, "reading the machine hangs")
	}
}
