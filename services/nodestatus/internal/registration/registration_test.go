package registration_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/registration"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a registrar with an in-memory API server.
type rig struct {
	api    *apiServer
	clock  *clocktesting.FakeClock
	health *rpc.Health
	// has gets the registrar's view of the API server's Node.
	has chan *v1.Node

	mu   sync.Mutex
	gets []time.Time
	fail func(verb string) error
}

func computed() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              "node-1",
			CreationTimestamp: metav1.Unix(1, 0),
			Labels: map[string]string{
				v1.LabelHostname:   "node-1",
				v1.LabelOSStable:   "linux",
				v1.LabelArchStable: "amd64",
				"disk":             "ssd",
			},
		},
		Spec: v1.NodeSpec{
			ProviderID: "metal://1", PodCIDR: "10.88.0.0/16", PodCIDRs: []string{"10.88.0.0/16"},
			Taints: []v1.Taint{{Key: "only", Effect: v1.TaintEffectNoSchedule}},
		},
		Status: v1.NodeStatus{
			NodeInfo: v1.NodeSystemInfo{BootID: "boot"}, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
}

// newRig starts a registrar that runs until the test ends. change may change its configuration and the rig before the
// start.
func newRig(t *testing.T, change func(*rig, *registration.Config), stored ...*v1.Node) *rig {
	t.Helper()
	r := &rig{clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), health: rpc.NewHealth(), has: make(chan *v1.Node, 100)}
	r.api = &apiServer{t: t, onRequest: r.onRequest, news: make(chan struct{})}
	for _, node := range stored {
		r.api.put(node)
	}
	cfg := registration.Config{
		Client:     r.api.client(),
		Name:       "node-1",
		Register:   true,
		Kubeconfig: "/etc/kubeconfig",
		Changed:    func(node *v1.Node) { r.has <- node },
		Delayed:    func() string { return "" },
		Health:     r.health,
		Clock:      r.clock,
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
		Tracer:     telemetry.Off(),
	}
	if change != nil {
		change(r, &cfg)
	}
	registrar := registration.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		registrar.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	registrar.Offer(computed())
	return r
}

// asked records a request, and returns its failure.
func (r *rig) onRequest(verb string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if verb == "get" {
		r.gets = append(r.gets, r.clock.Now())
	}
	if r.fail == nil {
		return nil
	}
	return r.fail(verb)
}

// failing sets the failures of later requests, by verb.
func (r *rig) failing(fail func(verb string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail = fail
}

// tells waits for the next report of the Node, and advances the clock when the registrar waits for it.
func (r *rig) nextChange(t *testing.T) *v1.Node {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); {
		select {
		case node := <-r.has:
			return node
		case <-time.After(time.Millisecond):
			if r.clock.HasWaiters() {
				r.clock.Step(100 * time.Millisecond)
			}
		}
	}
	t.Fatalf("nothing is said of the Node; waits for %q", r.health.Waiting())
	return nil
}

// watched waits until the registrar has begun its nth watch.
func (r *rig) watched(t *testing.T, n int) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); r.api.watched() < n; <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the Node is not watched; waits for %q", r.health.Waiting())
		}
	}
}

// waits advances the clock until the health contains a text.
func (r *rig) waits(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(time.Millisecond) {
		if strings.Contains(strings.Join(r.health.Waiting(), "\n"), want) {
			return
		}
		if r.clock.HasWaiters() {
			r.clock.Step(100 * time.Millisecond)
		}
	}
	t.Fatalf("waits for %q, want %q", r.health.Waiting(), want)
}

func TestTheComputedNodeIsRegistered(t *testing.T) {
	r := newRig(t, nil)
	if node := r.nextChange(t); node == nil || node.Name != "node-1" || node.ResourceVersion != "" ||
		len(node.ManagedFields) > 0 {
		t.Errorf("said of the Node: %+v", node)
	}
	if len(r.health.Waiting()) > 0 {
		t.Errorf("with the Node there it waits for %q, want none", r.health.Waiting())
	}
	got := r.api.has()
	if got.Labels["disk"] != "ssd" || got.Spec.ProviderID != "metal://1" || len(got.Spec.Taints) != 1 ||
		got.Status.NodeInfo.BootID != "boot" {
		t.Errorf("registered %+v, want disk %q, Spec.ProviderID %q, len(Spec.Taints) 1 and Status.NodeInfo.BootID %q",
			got, "ssd", "metal://1", "boot")
	}
	if got.Spec.PodCIDR != "" || len(got.Spec.PodCIDRs) > 0 || !got.CreationTimestamp.IsZero() {
		t.Errorf("podCIDR %q and the time %v are the API server's to give", got.Spec.PodCIDR, got.CreationTimestamp)
	}
}

// TestANewNodeIsNotReadyBeforeItMayBe, so that no scheduler uses it.
func TestANewNodeIsNotReadyBeforeItMayBe(t *testing.T) {
	for _, delayed := range []string{"", "CSINode is not yet initialized"} {
		r := newRig(t, func(_ *rig, cfg *registration.Config) { cfg.Delayed = func() string { return delayed } })
		r.nextChange(t)
		conditions := r.api.has().Status.Conditions
		if len(conditions) != 1 || (conditions[0].Status == v1.ConditionTrue) != (delayed == "") ||
			conditions[0].Message != delayed {
			t.Errorf("with the delay %q it is registered as %v", delayed, conditions)
		}
	}
}

// TestANodeThatIsThereIsTakenAsItIs, except the labels that describe the machine.
func TestANodeThatIsThereIsTakenAsItIs(t *testing.T) {
	stored := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   "node-1",
			UID:    "u",
			Labels: map[string]string{"disk": "hdd", v1.LabelHostname: "another"},
		},
		Spec: v1.NodeSpec{Unschedulable: true},
	}
	r := newRig(t, nil, stored)
	node := r.nextChange(t)
	want := map[string]string{
		"disk":             "hdd",
		v1.LabelHostname:   "node-1",
		v1.LabelOSStable:   "linux",
		v1.LabelArchStable: "amd64",
	}
	for label, value := range want {
		if node.Labels[label] != value || r.api.has().Labels[label] != value {
			t.Errorf("%s is %q here and %q there, want %q", label, node.Labels[label], r.api.has().Labels[label], value)
		}
	}
	if node.UID != "u" || !node.Spec.Unschedulable || len(r.api.has().Spec.Taints) > 0 {
		t.Errorf("the Node is %+v, want it as it was", node)
	}
}

// TestAMachineThatIsSetUpAnewHasNoExtendedResources until they are reported again. Other resources stay, and so do
// those that are added later, and all of a machine that was only restarted.
func TestAMachineThatIsSetUpAnewHasNoExtendedResources(t *testing.T) {
	amounts := func(amount string) v1.ResourceList {
		return v1.ResourceList{"example.com/gpu": resource.MustParse(amount), v1.ResourceCPU: resource.MustParse("2")}
	}
	stored := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u"},
		Status:     v1.NodeStatus{Capacity: amounts("4"), Allocatable: amounts("3")},
	}
	for _, tc := range []struct {
		recreated bool
		want      []int64
	}{{true, []int64{0, 0, 2}}, {false, []int64{4, 3, 2}}} {
		refused := tc.recreated // at first, and is asked again
		r := newRig(t, func(r *rig, cfg *registration.Config) {
			cfg.Recreated = tc.recreated
			r.fail = func(verb string) error {
				if verb == "patch" && refused {
					refused = false
					return errors.New("connection refused")
				}
				return nil
			}
		}, stored)
		gpus := func(node *v1.Node) []int64 {
			all, free, cpus := node.Status.Capacity["example.com/gpu"], node.Status.Allocatable["example.com/gpu"], node.Status.Capacity[v1.ResourceCPU]
			return []int64{all.Value(), free.Value(), cpus.Value()}
		}
		if r.nextChange(t); !slices.Equal(gpus(r.api.has()), tc.want) {
			t.Errorf("recreated %t: the amounts are %v, want %v", tc.recreated, gpus(r.api.has()), tc.want)
		}
		r.watched(t, 1)
		later := r.api.has().DeepCopy()
		later.Status.Capacity, later.Status.Allocatable = amounts("8"), amounts("8")
		r.api.put(later)
		r.nextChange(t)
		if got := gpus(r.api.has()); !slices.Equal(got, []int64{8, 8, 2}) {
			t.Errorf("recreated %t: what is added later is %v", tc.recreated, got)
		}
	}
}

// TestAnAnnotationThatNoFlagGivesAnyMoreIsRemoved; others stay.
func TestAnAnnotationThatNoFlagGivesAnyMoreIsRemoved(t *testing.T) {
	r := newRig(t, nil, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u", Annotations: map[string]string{
		"alpha.kubernetes.io/provided-node-ip": "192.0.2.1", "another": "one",
	}}})
	if node := r.nextChange(t); len(node.Annotations) != 1 || node.Annotations["another"] != "one" {
		t.Errorf("the annotations are %v, want exactly one and another %q", node.Annotations, "one")
	}
}

func TestLabelsThatCannotBeMendedKeepNothingFromWorking(t *testing.T) {
	forbid := func(r *rig, _ *registration.Config) {
		r.fail = func(verb string) error {
			if verb == "patch" {
				return apierrors.NewForbidden(v1.Resource("nodes"), "node-1", errors.New("labels are not yours"))
			}
			return nil
		}
	}
	r := newRig(t, forbid, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "bare"}})
	if node := r.nextChange(t); node == nil || node.UID != "bare" {
		t.Errorf("said %+v, want the Node as it is", node)
	}
	if len(r.health.Waiting()) > 0 {
		t.Errorf("waits for %q, want none", r.health.Waiting())
	}
}

func TestADeletedNodeIsRegisteredAgain(t *testing.T) {
	r := newRig(t, nil)
	r.nextChange(t)
	for round := range 3 {
		r.watched(t, round+1)
		r.api.remove()
		if node := r.nextChange(t); node != nil {
			t.Errorf("said %+v of a Node that was deleted", node)
		}
		if node := r.nextChange(t); node == nil {
			t.Error("the Node is not registered again")
		}
	}
}

func TestChangesOfOthersAreReportedAndTheirHeartbeatsAreNot(t *testing.T) {
	r := newRig(t, nil)
	r.nextChange(t)
	r.watched(t, 1)
	status := r.api.has().DeepCopy()
	status.Status.Phase, status.ManagedFields = v1.NodeRunning, []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	r.api.put(status)
	cordoned := r.api.has().DeepCopy()
	cordoned.Spec.Unschedulable = true
	r.api.put(cordoned)
	if node := r.nextChange(t); !node.Spec.Unschedulable {
		t.Errorf("said %+v, want that it is cordoned and nothing before", node.Spec)
	}
}

// TestTheWaitsBetweenTriesDouble from 100 ms to 7 s.
func TestTheWaitsBetweenTriesDouble(t *testing.T) {
	r := newRig(t, func(r *rig, _ *registration.Config) {
		r.fail = func(string) error { return errors.New("connection refused") }
	})
	var waits []time.Duration
	for end := time.Now().Add(60 * time.Second); len(waits) < 9 && time.Now().Before(end); <-time.After(time.Millisecond) {
		if r.clock.HasWaiters() {
			r.clock.Step(100 * time.Millisecond)
		}
		waits = waits[:0]
		r.mu.Lock()
		for i := 1; i < len(r.gets); i++ {
			waits = append(waits, r.gets[i].Sub(r.gets[i-1]))
		}
		r.mu.Unlock()
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	want := []time.Duration{
		seconds(.1),
		seconds(.2),
		seconds(.4),
		seconds(.8),
		seconds(1.6),
		seconds(3.2),
		seconds(6.4),
		seconds(7),
		seconds(7),
	}
	if len(waits) < len(want) || !slices.Equal(waits[:len(want)], want) {
		t.Errorf("waits %v, want %v", waits, want)
	}
}

// TestTheWaitsBeginAgain once the Node has been watched for a while, because earlier failures no longer matter.
func TestTheWaitsBeginAgain(t *testing.T) {
	r := newRig(t, func(r *rig, _ *registration.Config) {
		r.fail = func(string) error { return errors.New("connection refused") }
	})
	tries := func() []time.Time {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Clone(r.gets)
	}
	end := time.Now().Add(60 * time.Second)
	for ; len(tries()) < 9 && time.Now().Before(end); <-time.After(time.Millisecond) {
		if r.clock.HasWaiters() {
			r.clock.Step(100 * time.Millisecond)
		}
	}
	r.failing(nil)
	r.nextChange(t)
	r.watched(t, 1)
	r.clock.Step(time.Minute)
	deleted := r.clock.Now()
	r.api.remove()
	r.nextChange(t)
	if node := r.nextChange(t); node == nil {
		t.Fatal("the Node is not registered again")
	}
	all := tries()
	if waited := all[len(all)-1].Sub(deleted); waited != 100*time.Millisecond {
		t.Errorf("after the Node was deleted it waited %v, want 100ms", waited)
	}
}

func TestTheHealthSaysWhyTheNodeIsNotThere(t *testing.T) {
	nodes := v1.Resource("nodes")
	for _, tc := range []struct {
		name string
		fail func(verb string) error
		want string
	}{
		{"away", func(string) error { return errors.New("dial tcp 198.51.100.1:6443: connection refused") }, "reading the Node from the API server of /etc/kubeconfig: check that it runs"},
		{"hung", func(string) error { return context.DeadlineExceeded }, "does not answer within 10s"},
		{"unknown user", func(string) error { return apierrors.NewUnauthorized("who?") }, "does not accept the credentials of /etc/kubeconfig: check its users"},
		{"another node's user", func(string) error { return apierrors.NewForbidden(nodes, "node-1", errors.New("no")) }, "system:node:node-1 in the group system:nodes"},
		{"invalid", func(verb string) error {
			if verb == "create" {
				return apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("Node").GroupKind(), "node-1", nil)
			}
			return nil
		}, "check --node-labels and registerWithTaints"},
		{"no watch", func(verb string) error {
			if verb == "watch" {
				return apierrors.NewForbidden(nodes, "node-1", errors.New("no"))
			}
			return nil
		}, "may not keep the Node"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.nextChange(t)
			r.watched(t, 1)
			r.failing(tc.fail)
			r.api.remove()
			r.waits(t, tc.want)
			r.failing(nil)
			for node := r.nextChange(t); node == nil; node = r.nextChange(t) { // the previous report may be the deletion
			}
			r.nothing(t)
		})
	}
}

// nothing waits until the health has nothing to wait for.
func (r *rig) nothing(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(time.Millisecond) {
		if len(r.health.Waiting()) == 0 {
			return
		}
		if r.clock.HasWaiters() {
			r.clock.Step(100 * time.Millisecond)
		}
	}
	t.Errorf("still waits for %q", r.health.Waiting())
}

func TestWithoutRegisterNodeTheNodeIsNotCreated(t *testing.T) {
	r := newRig(t, func(_ *rig, cfg *registration.Config) { cfg.Register = false })
	r.waits(t, "the API server has no Node node-1, and registerNode is false: create it")
	if len(r.has) > 0 {
		t.Errorf("said %+v before there was a Node", <-r.has)
	}
	r.api.put(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "theirs"}})
	if node := r.nextChange(t); node == nil || node.UID != "theirs" {
		t.Errorf("said %+v, want the Node that was created", node)
	}
	r.nothing(t)
}
