package resourceclaims_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	drav1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	"k8s.io/utils/ptr"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimcheckpoint"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAClaimOfTwoPods is prepared once, in both versions of the API, and unprepared after the second one.
func TestAClaimOfTwoPods(t *testing.T) {
	for _, service := range []string{drav1.DRAPluginService, drav1beta1.DRAPluginService} {
		t.Run(service, func(t *testing.T) {
			r := newRig(t)
			p := r.serve(gpus, "a.sock", &plugin{}, service)
			r.api.put("own", []string{gpus}, "a")
			r.api.put("shared", []string{gpus}, "a", "b")
			first, second := named("a", "own", "shared"), named("b", "shared")
			r.prepare(first)
			want(t, "the calls", p.called(), "prepare shop/own=own,shop/shared=shared")
			want(t, "the devices", r.devices(first), "example.com/gpu=own example.com/gpu=shared")
			r.prepare(second)
			r.prepare(first) // its sandbox has crashed
			want(t, "the calls", p.called(), "")
			want(t, "the devices", r.devices(second), "example.com/gpu=shared")
			must(t, r.Release(t.Context(), "a"))
			want(t, "the calls", p.called(), "unprepare shop/own=own")
			must(t, r.Release(t.Context(), "a"))
			must(t, r.Release(t.Context(), "b"))
			want(t, "the calls", p.called(), "unprepare shop/shared=shared")
			if pods := r.Pods(); len(pods) > 0 {
				t.Errorf("claims are left of %v", pods)
			}
		})
	}
}

// TestWhatAPodMayNotUse checks the errors, which are the kubelet's, and that nothing is called or kept.
func TestWhatAPodMayNotUse(t *testing.T) {
	r := newRig(t)
	p := r.serve(gpus, "a.sock", &plugin{}, drav1.DRAPluginService)
	r.refuse(named("a", "lost"), `fetch ResourceClaim lost: resourceclaims "lost" not found`)
	r.api.put("others", []string{gpus}, "b")
	r.refuse(named("a", "others"), "pod a (a) is not allowed to use ResourceClaim others (others)")
	r.api.put("waiting", []string{gpus}, "a").Status.Allocation = nil
	r.refuse(named("a", "waiting"), "ResourceClaim waiting: not allocated")
	r.api.put("good", []string{gpus}, "a")
	r.api.put("foreign", []string{gpus, "nic.example.com"}, "a")
	r.refuse(named("a", "good", "foreign"), "DRA driver nic.example.com is not registered")
	generated := named("a", "good")
	generated.Spec.ResourceClaims[0] = v1.PodResourceClaim{Name: "my-good", ResourceClaimTemplateName: ptr.To("template")}
	r.refuse(generated, `pod "shop/a": ResourceClaim not created yet`)
	generated.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{
		{Name: "my-good", ResourceClaimName: ptr.To("good")},
	}
	r.refuse(generated, "ResourceClaim shop/good was not created for Pod shop/a (Pod is not owner)")
	generated.Status.ResourceClaimStatuses[0].ResourceClaimName = nil // the cluster has decided that it needs none
	r.prepare(generated)
	want(t, "the calls", p.called(), "")
	if pods := r.Pods(); len(pods) > 0 {
		t.Errorf("claims are kept of %v", pods)
	}
}

// TestWhatADriverDoesWrong fails the pod with the kubelet's errors, which a retry mends.
func TestWhatADriverDoesWrong(t *testing.T) {
	r := newRig(t)
	p := r.serve(gpus, "a.sock", &plugin{}, drav1.DRAPluginService)
	r.api.put("one", []string{gpus}, "a")
	r.api.put("two", []string{gpus}, "a")
	pod := named("a", "one", "two")
	answer := func(of func(c *drav1.Claim) *drav1.NodePrepareResourceResponse) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answer = of
	}
	answer(func(c *drav1.Claim) *drav1.NodePrepareResourceResponse {
		if c.GetName() == "two" {
			return &drav1.NodePrepareResourceResponse{Error: "it is on fire"}
		}
		return &drav1.NodePrepareResourceResponse{}
	})
	r.refuse(pod, "NodePrepareResources failed for ResourceClaim two: it is on fire")
	answer(func(c *drav1.Claim) *drav1.NodePrepareResourceResponse {
		if c.GetName() == "two" {
			return nil
		}
		return &drav1.NodePrepareResourceResponse{}
	})
	r.refuse(pod, "NodePrepareResources skipped 1 ResourceClaims")
	answer(nil)
	r.prepare(pod)
	p.called()
	p.mu.Lock()
	p.fails = []string{"busy", "silent"}
	p.mu.Unlock()
	const all = "NodeUnprepareResources failed for ResourceClaim one: busy\nNodeUnprepareResources failed for ResourceClaim two: busy"
	for _, text := range []string{
		all, strings.NewReplacer("failed for", "skipped", ": busy", "").Replace(all),
	} {
		if err := r.Release(t.Context(), "a"); err == nil || err.Error() != "unprepare dynamic resources: "+text {
			t.Errorf("got %v, want %s", err, text)
		}
	}
	r.refuse(pod, "ResourceClaim one is being unprepared")
	must(t, r.Release(t.Context(), "a"))
	p.stop()
	r.api.put("one", []string{gpus}, "a")
	err := r.Prepare(t.Context(), pod)
	if err == nil || !strings.Contains(err.Error(), "NodePrepareResources: rpc error: code = ") {
		t.Errorf("without the driver: %v", err)
	}
}

// TestAHangOfADriverDelaysNoOtherPod, and a pod that is to end does not wait.
func TestAHangOfADriverDelaysNoOtherPod(t *testing.T) {
	r := newRig(t)
	slow := r.serve("slow.example.com", "slow.sock", &plugin{gate: make(chan struct{})}, drav1.DRAPluginService)
	fast := r.serve(gpus, "fast.sock", &plugin{}, drav1.DRAPluginService)
	r.api.put("slow", []string{"slow.example.com"}, "a", "b")
	r.api.put("fast", []string{gpus}, "c")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, uid := range []types.UID{"a", "b"} {
		go func() { ended <- r.Prepare(ctx, named(uid, "slow")) }()
	}
	eventually.That(t, "the driver is called", func() bool { return slow.called() != "" })
	r.prepare(named("c", "fast"))
	must(t, r.Release(t.Context(), "c"))
	want(t, "the calls", fast.called(), "prepare shop/fast=fast; unprepare shop/fast=fast")
	cancel()
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a pod that is to end is prepared")
		}
	}
	want(t, "the second pod has waited for the first one", slow.called(), "")
	close(slow.gate)
	r.prepare(named("a", "slow"))
	must(t, r.Release(t.Context(), "a"))
	must(t, r.Release(t.Context(), "b"))
}

// TestAKilledProcess finds its claims: those of running pods, and those of pods that were removed meanwhile.
func TestAKilledProcess(t *testing.T) {
	r := newRig(t)
	p := r.serve(gpus, "a.sock", &plugin{}, drav1.DRAPluginService)
	r.api.put("shared", []string{gpus}, "a", "b", "c")
	r.prepare(named("a", "shared"))
	r.prepare(named("b", "shared"))
	r.restart()
	r.register(gpus, "a.sock", drav1.DRAPluginService)
	p.called()
	want(t, "the devices", r.devices(named("a", "shared")), "example.com/gpu=shared")
	if diff := cmp.Diff([]types.UID{"a", "b"}, r.Pods()); diff != "" {
		t.Errorf("the pods (-want +got):\n%s", diff)
	}
	must(t, r.Release(t.Context(), "a")) // it was removed meanwhile
	want(t, "a claim in use", p.called(), "")
	r.prepare(named("c", "shared"))
	want(t, "a pod after the restart", p.called(), "prepare shop/shared=shared")
	must(t, r.Release(t.Context(), "b"))
	r.restart()
	if err := r.Release(t.Context(), "c"); err == nil ||
		err.Error() != "unprepare dynamic resources: DRA driver "+gpus+" is not registered" {
		t.Errorf("without the driver: %v", err)
	}
	r.register(gpus, "a.sock", drav1.DRAPluginService)
	want(t, "the pod that tries again", string(<-r.changed), "c")
	must(t, r.Release(t.Context(), "c"))
	want(t, "the last pod", p.called(), "unprepare shop/shared=shared")
	r.restart()
	if pods := r.Pods(); len(pods) > 0 {
		t.Errorf("claims are left of %v", pods)
	}
}

// TestAKillAtAnyCall ends the process before or after each change of what a driver has prepared. The next process finds
// all of it, and gives it back when the pods are gone.
func TestAKillAtAnyCall(t *testing.T) {
	for point := 1; ; point++ {
		r := newRig(t)
		path := filepath.Join(r.root, claimcheckpoint.File)
		r.api.put("own", []string{gpus}, "a")
		r.api.put("shared", []string{gpus}, "a", "b")
		var disk []byte
		var held map[string]bool
		n := 0
		p := &plugin{holds: map[string]bool{}}
		p.at = func() {
			if n++; n == point {
				held = maps.Clone(p.holds)
				disk, _ = os.ReadFile(path) // there is none before the first claim
			}
		}
		r.serve(gpus, "a.sock", p, drav1.DRAPluginService)
		r.prepare(named("a", "own", "shared"))
		r.prepare(named("b", "shared"))
		must(t, r.Release(t.Context(), "a"))
		must(t, r.Release(t.Context(), "b"))
		if n < point {
			if n != 6 {
				t.Errorf("there are %d points", n)
			}
			return
		}
		r.end()
		must(t, os.WriteFile(path, disk, 0o600))
		p.holds, p.at = held, func() {}
		r.restart()
		r.register(gpus, "a.sock", drav1.DRAPluginService)
		for _, uid := range r.Pods() {
			must(t, r.Release(t.Context(), uid))
		}
		if len(p.holds) > 0 {
			t.Errorf("after a kill at point %d, the driver holds %v", point, p.holds)
		}
	}
}

// TestADamagedCheckpoint is rebuilt from the sandboxes of pods.
func TestADamagedCheckpoint(t *testing.T) {
	r := newRig(t)
	p := r.serve(gpus, "a.sock", &plugin{}, drav1.DRAPluginService)
	r.api.put("shared", []string{gpus}, "a", "b")
	r.prepare(named("a", "shared"))
	r.prepare(named("b", "shared"))
	text, err := r.Annotation("a")
	must(t, err)
	if none, err := r.Annotation("c"); none != "" || err != nil {
		t.Errorf("a pod without claims has the annotation %q, %v", none, err)
	}
	r.end()
	path := filepath.Join(r.root, claimcheckpoint.File)
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	r.begin()
	status := func(uid, text string) *lifecyclev1.PodStatus {
		sandbox := &lifecyclev1.Sandbox{Annotations: map[string]string{podlabels.Claims: text}}
		return &lifecyclev1.PodStatus{Uid: uid, Sandboxes: []*lifecyclev1.Sandbox{sandbox}}
	}
	r.Recover([]*lifecyclev1.PodStatus{status("a", text), status("b", text), status("x", "{"), {Uid: "y"}})
	want(t, "the devices", r.devices(named("a", "shared")), "example.com/gpu=shared")
	eventually.That(t, "there is a checkpoint", func() bool { _, err := os.Stat(path); return err == nil })
	if _, err := os.Stat(path + ".damaged"); err != nil || !strings.Contains(r.log.String(), "the checkpoint is damaged") {
		t.Errorf("%v; the log has\n%s", err, r.log.String())
	}
	r.register(gpus, "a.sock", drav1.DRAPluginService)
	p.called()
	must(t, r.Release(t.Context(), "a"))
	must(t, r.Release(t.Context(), "b"))
	want(t, "the calls", p.called(), "unprepare shop/shared=shared")
}

// TestAKillBeforeALostCheckpointIsRebuiltLosesNoClaim kills a process after it has found the checkpoint damaged or
// missing and a driver has registered, and before it is known what runs.
func TestAKillBeforeALostCheckpointIsRebuiltLosesNoClaim(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"removed": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			p := r.serve(gpus, "a.sock", &plugin{}, drav1.DRAPluginService)
			r.api.put("one", []string{gpus}, "a")
			r.prepare(named("a", "one"))
			text, err := r.Annotation("a")
			must(t, err)
			r.end()
			path := filepath.Join(r.root, claimcheckpoint.File)
			must(t, lose(path))
			r.begin()
			r.register(gpus, "a.sock", drav1.DRAPluginService)
			r.refuse(named("a", "one"), "it is not known yet which resource claims the pods in the runtime use")
			r.end()
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a checkpoint was written before it is known what runs: %v", err)
			}
			r.begin()
			r.register(gpus, "a.sock", drav1.DRAPluginService)
			r.Recover([]*lifecyclev1.PodStatus{{Uid: "a", Sandboxes: []*lifecyclev1.Sandbox{
				{Annotations: map[string]string{podlabels.Claims: text}},
			}}})
			eventually.That(t, "there is a checkpoint", func() bool { _, err := os.Stat(path); return err == nil })
			r.restart()
			r.register(gpus, "a.sock", drav1.DRAPluginService)
			p.called()
			must(t, r.Release(t.Context(), "a"))
			want(t, "the calls", p.called(), "unprepare shop/one=one")
		})
	}
}

// TestTheNewestPluginOfADriverGetsTheCalls while it is connected, and another one after that.
func TestTheNewestPluginOfADriverGetsTheCalls(t *testing.T) {
	r := newRig(t)
	r.api.put("one", []string{gpus}, "a")
	old := r.serve(gpus, "old.sock", &plugin{}, drav1.DRAPluginService)
	fresh := r.serve(gpus, "new.sock", &plugin{}, drav1.DRAPluginService)
	err := r.Register(gpus, filepath.Join(r.root, "new.sock"), []string{drav1.DRAPluginService})
	if err == nil || !strings.Contains(err.Error(), "already registered for DRA driver plugin") {
		t.Errorf("one socket twice: %v", err)
	}
	turn := func() (calls string) {
		old.called()
		fresh.called()
		if r.Prepare(t.Context(), named("a", "one")) == nil {
			calls = old.called() + "|" + fresh.called()
		}
		must(t, r.Release(t.Context(), "a"))
		return calls
	}
	eventually.That(t, "the new plugin gets the calls", func() bool { return turn() == "|prepare shop/one=one" })
	r.prepare(named("a", "one"))
	fresh.stop()
	eventually.That(t, "the old plugin gets the calls", func() bool { return r.Release(t.Context(), "a") == nil })
	want(t, "the calls", turn(), "prepare shop/one=one|")
	r.Deregister(t.Context(), gpus, filepath.Join(r.root, "old.sock"))
	r.Deregister(t.Context(), gpus, filepath.Join(r.root, "new.sock"))
	r.Deregister(t.Context(), gpus, filepath.Join(r.root, "new.sock"))
	r.refuse(named("a", "one"), "DRA driver "+gpus+" is not registered")
}

func TestPluginsThatAreRefused(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct {
		name     string
		versions []string
		want     string
	}{
		{name: gpus, want: "empty list of supported gRPC services (aka supported versions)"},
		{name: gpus, versions: []string{"v1alpha4.Node"}, want: `none of services supported by the plugin (["v1alpha4.Node"])`},
		{name: "GPU", versions: []string{drav1.DRAPluginService}, want: "the name of the driver is invalid"},
		{name: strings.Repeat("a", 64), versions: []string{drav1.DRAPluginService}, want: "more than 63 characters"},
	} {
		for _, err := range []error{r.Validate(tc.name, "/a", tc.versions), r.Register(tc.name, "/a", tc.versions)} {
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		}
	}
}

// TestPublishedDevicesAreRemovedOnceWithoutADisk has a start of the machine that cannot be recorded.
func TestPublishedDevicesAreRemovedOnceWithoutADisk(t *testing.T) {
	r := newRig(t)
	r.end()
	must(t, os.RemoveAll(filepath.Join(r.root, "boot")))
	must(t, os.MkdirAll(filepath.Join(r.root, "boot", "in the way"), 0o700))
	r.restart()
	eventually.That(t, "the log says that the start is not recorded", func() bool {
		return strings.Contains(r.log.String(), "cannot record that the ResourceSlices of this node were removed")
	})
	r.api.mu.Lock()
	r.api.slices = map[string]bool{gpus: true}
	r.api.mu.Unlock()
	for range 5 {
		r.clock.Step(time.Minute)
	}
	want(t, "published", r.api.published(), gpus)
}

// TestPublishedDevicesOfADriverThatHasLeft are removed after 30 s, unless it comes back.
func TestPublishedDevicesOfADriverThatHasLeft(t *testing.T) {
	r := newRig(t)
	eventually.That(t, "the devices of all drivers are removed at the start of the machine", func() bool {
		data, err := os.ReadFile(filepath.Join(r.root, "boot"))
		return err == nil && string(data) == "boot"
	})
	publish := func() {
		r.api.mu.Lock()
		r.api.slices = map[string]bool{gpus: true, "nic.example.com": true}
		r.api.mu.Unlock()
	}
	publish()
	p := r.serve(gpus, "a.sock", &plugin{}, drav1.DRAPluginService)
	r.api.put("one", []string{gpus}, "a")
	r.prepare(named("a", "one")) // it is connected
	p.stop()
	p.listen(t, filepath.Join(r.root, "a.sock"), []string{drav1.DRAPluginService})
	eventually.That(t, "the driver is back", func() bool { return r.Release(t.Context(), "a") == nil })
	r.clock.Step(31 * time.Second)
	want(t, "published", r.api.published(), gpus+" nic.example.com")
	r.restart()
	r.register(gpus, "a.sock", drav1.DRAPluginService)
	r.prepare(named("a", "one"))
	eventually.That(t, "the devices of a driver that did not come back are removed", func() bool {
		r.clock.Step(31 * time.Second)
		return r.api.published() == gpus
	})
	r.api.mu.Lock()
	r.api.err = errors.New("the API server is away")
	r.api.mu.Unlock()
	r.Deregister(t.Context(), gpus, filepath.Join(r.root, "a.sock"))
	eventually.That(t, "a failure is logged", func() bool {
		r.clock.Step(31 * time.Second)
		return strings.Contains(r.log.String(), "the API server is away")
	})
	r.api.mu.Lock()
	r.api.err = nil
	r.api.mu.Unlock()
	eventually.That(t, "it is tried again", func() bool {
		r.clock.Step(time.Second)
		return r.api.published() == ""
	})
}

// TestAClaimOfExtendedResources gives a container the devices of its requests.
func TestAClaimOfExtendedResources(t *testing.T) {
	r := newRig(t)
	r.serve(gpus, "a.sock", &plugin{}, drav1.DRAPluginService)
	r.api.put("extended", []string{gpus}, "a")
	pod := named("a")
	amounts := v1.ResourceList{"example.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("1")}
	pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: amounts, Limits: amounts}
	pod.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "extended",
		RequestMappings: []v1.ContainerExtendedResourceRequest{
			{ContainerName: "other", ResourceName: "example.com/gpu", RequestName: "one"},
		},
	}
	r.prepare(pod)
	want(t, "the devices of another container", r.devices(pod), "")
	pod.Status.ExtendedResourceClaimStatus.RequestMappings[0].ContainerName = "main"
	want(t, "the devices", r.devices(pod), "example.com/gpu=extended")
	if claims := r.Claims(pod, &pod.Spec.Containers[0]); len(claims) != 1 || claims[0].Name.Name != "extended" {
		t.Errorf("the claims are %v", claims)
	}
	metricstest.Want(t, r.metrics, 1, "dra_resource_claims_in_use", "driver_name", "<any>")
	metricstest.Want(t, r.metrics, 1, "dra_resource_claims_in_use", "driver_name", gpus)
	must(t, r.Release(t.Context(), "a"))
}
