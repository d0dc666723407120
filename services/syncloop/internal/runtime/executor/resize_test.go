package executor_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// record is the record of a resized pod, as on a disk: it outlives a Manager.
type record struct {
	mu       sync.Mutex
	resized  bool
	actuated resize.Actuated
	step     func(string) error
}

func (r *record) Actuated(*v1.Pod) (resize.Actuated, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return copied(r.actuated), r.resized
}

// allocate records a new allocation of the pod, as the sync loop does.
func (r *record) allocate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resized, r.actuated.Unfinished = true, true
}

func copied(a resize.Actuated) resize.Actuated {
	return resize.Actuated{Unfinished: a.Unfinished, Pod: a.Pod, Containers: maps.Clone(a.Containers)}
}

func (r *record) Actuate(_ *v1.Pod, note func(*resize.Actuated)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := copied(r.actuated)
	note(&next)
	if r.step != nil {
		if err := r.step("record"); err != nil {
			return err
		}
	}
	r.resized, r.actuated = true, next
	return nil
}

// watched reports each change of a container's resources, which the test may reject.
type watched struct {
	internalapi.RuntimeService
	step func(string) error
	name func(id string) string
}

func (w watched) UpdateContainerResources(ctx context.Context, id string, r *runtimeapi.ContainerResources) error {
	l := r.GetLinux()
	what := fmt.Sprintf("%s: shares %d quota %d memory %d", w.name(id), l.GetCpuShares(), l.GetCpuQuota(), l.GetMemoryLimitInBytes())
	if err := w.step(what); err != nil {
		return err
	}
	return w.RuntimeService.UpdateContainerResources(ctx, id, r)
}

func (w watched) StopContainer(ctx context.Context, id string, timeout int64) error {
	if err := w.step("stop " + w.name(id)); err != nil {
		return err
	}
	return w.RuntimeService.StopContainer(ctx, id, timeout)
}

func (w watched) CreateContainer(
	ctx context.Context,
	sandbox string,
	config *runtimeapi.ContainerConfig,
	of *runtimeapi.PodSandboxConfig,
) (string, error) {
	if err := w.step("create " + config.GetMetadata().GetName()); err != nil {
		return "", err
	}
	return w.RuntimeService.CreateContainer(ctx, sandbox, config, of)
}

// resizer is a node that records the steps of a resize.
type resizer struct {
	*node
	cgroups *cgroups
	record  *record

	mu    sync.Mutex
	steps []string
	// fail rejects a step; nil rejects none.
	fail func(n int, step string) error
}

func newResizer(t *testing.T, change ...func(*executor.Config)) *resizer {
	t.Helper()
	r := &resizer{cgroups: &cgroups{have: map[types.UID]bool{}}, record: &record{}}
	r.cgroups.step, r.record.step = r.step, nil
	r.node = newNode(t, append([]func(*executor.Config){func(c *executor.Config) {
		c.Cgroups, c.Resizes, c.Kubelet.CPUCFSQuota = r.cgroups, r.record, ptr.To(true)
		inner := c.Runtime
		c.Runtime = func() (internalapi.RuntimeService, error) {
			runtime, err := inner()
			return watched{RuntimeService: runtime, step: r.step, name: r.nameOf}, err
		}
	}}, change...)...)
	return r
}

func (r *resizer) nameOf(id string) string {
	for _, c := range r.cri.Containers() {
		if c.ID == id {
			return c.Name
		}
	}
	return "?"
}

func (r *resizer) step(step string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		if err := r.fail(len(r.steps), step); err != nil {
			return err
		}
	}
	r.steps = append(r.steps, step)
	return nil
}

func (r *resizer) took() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	steps := r.steps
	r.steps = nil
	return steps
}

// limited sets the limits of a container, and its requests to the same values.
func limited(pod *v1.Pod, name, cpu, memory string) {
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			c.Resources = v1.ResourceRequirements{Requests: podtest.List("cpu", cpu, "memory", memory), Limits: podtest.List("cpu", cpu, "memory", memory)}
		}
	}
}

func TestTheOrderOfAResize(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b [2]string // cpu and memory after the resize; before it they are 1 and 2Mi
		want []string
	}{
		"more": {[2]string{"2", "4Mi"}, [2]string{"1", "2Mi"}, []string{
			"pod: memory limit 6291456", "a: shares 1024 quota 100000 memory 4194304",
			"pod: cpu limit 300000", "pod: cpu shares 3072", "a: shares 2048 quota 200000 memory 4194304",
		}},
		"less": {[2]string{"0.5", "1Mi"}, [2]string{"1", "2Mi"}, []string{
			"a: shares 1024 quota 100000 memory 1048576", "pod: memory limit 3145728",
			"a: shares 512 quota 50000 memory 1048576", "pod: cpu shares 1536", "pod: cpu limit 150000",
		}},
		"from one to the other": {[2]string{"1.5", "3Mi"}, [2]string{"0.5", "1Mi"}, []string{
			"b: shares 1024 quota 100000 memory 1048576", "a: shares 1024 quota 100000 memory 3145728",
			"b: shares 512 quota 50000 memory 1048576", "a: shares 1536 quota 150000 memory 3145728",
		}},
		"more memory, less cpu": {[2]string{"0.5", "4Mi"}, [2]string{"1", "2Mi"}, []string{
			"pod: memory limit 6291456", "a: shares 1024 quota 100000 memory 4194304",
			"a: shares 512 quota 50000 memory 4194304", "pod: cpu shares 1536", "pod: cpu limit 150000",
		}},
		"nothing": {[2]string{"1", "2Mi"}, [2]string{"1", "2Mi"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newResizer(t)
			pod := newPod("a", "b")
			limited(pod, "a", "1", "2Mi")
			limited(pod, "b", "1", "2Mi")
			r.sync(pod)
			r.took()
			limited(pod, "a", tc.a[0], tc.a[1])
			limited(pod, "b", tc.b[0], tc.b[1])
			result := r.sync(pod)
			if result.ResizeError != nil || result.Wrote != (tc.want != nil) {
				t.Errorf("error %v, wrote %v", result.ResizeError, result.Wrote)
			}
			if diff := cmp.Diff(tc.want, r.took()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			r.wantAll(pod, "sandbox-0:ready a-0:running b-0:running")
			r.settled(pod)
		})
	}
}

// wantAll compares the runtime's state of a pod with words, regardless of the order of creation.
func (r *resizer) wantAll(pod *v1.Pod, want string) {
	r.t.Helper()
	got, wanted := strings.Fields(r.describe(pod)), strings.Fields(want)
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		r.t.Errorf("the runtime has %v, want %v", got, wanted)
	}
}

// settled checks that a pod has the wanted resources, and that nothing is left to do.
func (r *resizer) settled(pod *v1.Pod) {
	r.t.Helper()
	r.took()
	result := r.sync(pod)
	if steps := r.took(); len(steps) > 0 || result.ResizeError != nil {
		r.t.Errorf("there is more to do: %v, error %v", steps, result.ResizeError)
	}
	if resize.InProgress(pod, r.observe(pod), r.record.actuated) {
		r.t.Error("the resize is still in progress")
	}
	has, wants, err := r.cgroups.Given(pod)
	if err != nil || has.Memory != wants.Memory || has.CPUQuota != wants.CPUQuota || has.CPUShares != wants.CPUShares {
		r.t.Errorf("the pod's cgroup has %+v, and wants %+v; error %v", has, wants, err)
	}
	for _, c := range r.cri.Containers() {
		if c.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		for _, spec := range pod.Spec.Containers {
			if limit := spec.Resources.Limits.Memory().Value(); spec.Name == c.Name &&
				c.Resources.GetMemoryLimitInBytes() != limit {
				r.t.Errorf("%s has %d bytes, want %d", c.Name, c.Resources.GetMemoryLimitInBytes(), limit)
			}
		}
	}
}

// TestProtectionFollowsTheLimitOfMemory: a request that grows is protected together with the new limit of the pod.
func TestProtectionFollowsTheLimitOfMemory(t *testing.T) {
	r := newResizer(t)
	r.cgroups.protect = resources.MemoryQoS{Enabled: true, Tiered: true}
	pod := newPod("a")
	limited(pod, "a", "1", "4Mi")
	r.sync(pod)
	r.took()
	limited(pod, "a", "1", "8Mi")
	r.sync(pod)
	if got := r.took(); len(got) == 0 || got[0] != "pod: memory limit 8388608 map[memory.min:8388608]" {
		t.Errorf("the steps are %q", got)
	}
	r.settled(pod)
	if has, wants, err := r.cgroups.Given(pod); err != nil || !maps.Equal(has.Unified, wants.Unified) {
		t.Errorf("the pod's cgroup has %v, and wants %v; error %v", has.Unified, wants.Unified, err)
	}
}

func TestALimitOfMemoryBelowItsUseIsRefused(t *testing.T) {
	r := newResizer(t)
	pod := newPod("a", "b")
	limited(pod, "a", "1", "4Mi")
	limited(pod, "b", "1", "4Mi")
	r.sync(pod)
	r.took()
	smaller := pod.DeepCopy()
	limited(smaller, "a", "2", "2Mi")
	r.cri.SetMemoryUsage(r.id(pod, "a"), 3<<20)
	refused := func(want string) {
		t.Helper()
		result, err := r.manager.SyncPod(r.ctx, smaller, r.observe(smaller))
		if err != nil || result.ResizeError == nil || result.ResizeError.Error() != want ||
			!errors.As(result.ResizeError, new(*executor.ResizeError)) {
			t.Errorf("it says %v, want %s; error %v", result.ResizeError, want, err)
		}
		if steps := r.took(); len(steps) > 0 {
			t.Errorf("it has done %v, want none", steps)
		}
	}
	refused(`cannot decrease memory limits: attempting to set container "a" memory limit (2097152) below current usage (3145728)`)
	r.cgroups.uses = 6 << 20
	refused(`cannot decrease memory limits: [attempting to set pod memory limit (6291456) below current usage (6291456), ` +
		`attempting to set container "a" memory limit (2097152) below current usage (3145728)]`)
	r.cri.SetMemoryUsage(r.id(pod, "a"), 1<<20)
	refused(`cannot decrease memory limits: attempting to set pod memory limit (6291456) below current usage (6291456)`)
	r.cgroups.uses = 1 << 20
	if result := r.sync(smaller); result.ResizeError != nil {
		t.Errorf("ResizeError = %v, want nil", result.ResizeError)
	}
	r.settled(smaller)
}

// TestAContainerIsMadeAgainForAResize checks that the resize policy restarts a container whatever its restart policy
// is.
func TestAContainerIsMadeAgainForAResize(t *testing.T) {
	events := &recordedEvents{}
	r := newResizer(t, func(c *executor.Config) { c.Events = events })
	pod := newPod("a", "b")
	pod.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	pod.Spec.Containers[0].ResizePolicy = []v1.ContainerResizePolicy{
		{ResourceName: v1.ResourceMemory, RestartPolicy: v1.RestartContainer},
	}
	limited(pod, "a", "1", "2Mi")
	limited(pod, "b", "1", "2Mi")
	r.sync(pod)
	r.took()
	r.cri.ExitOnTerm("a", 0)
	limited(pod, "a", "1", "4Mi")
	limited(pod, "b", "2", "2Mi")
	r.sync(pod)
	want := []string{"stop a", "pod: memory limit 6291456", "pod: cpu limit 300000", "pod: cpu shares 3072", "b: shares 2048 quota 200000 memory 2097152", "create a"}
	if diff := cmp.Diff(want, r.took()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	r.wantAll(pod, "sandbox-0:ready b-0:running a-0:exited(0) a-1:running")
	r.settled(pod)
	if all := events.take(); !strings.Contains(all, "Container a resize requires restart") || !strings.Contains(all, "resources changed") {
		t.Errorf("the events are\n%s\nwant text with %q and with %q",
			all, "Container a resize requires restart", "resources changed")
	}
}

// TestAResizeGoesOnAfterAKill kills the process before each step in turn. The next process finishes the resize without
// unneeded restarts of containers.
func TestAResizeGoesOnAfterAKill(t *testing.T) {
	killed := errors.New("killed")
	for n, done := 0, false; !done; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r := newResizer(t)
			pod := newPod("a", "b", "c")
			pod.Spec.RestartPolicy = v1.RestartPolicyOnFailure
			pod.Spec.Containers[2].ResizePolicy = []v1.ContainerResizePolicy{
				{ResourceName: v1.ResourceCPU, RestartPolicy: v1.RestartContainer},
			}
			for _, c := range pod.Spec.Containers {
				limited(pod, c.Name, "1", "4Mi")
			}
			r.sync(pod)
			r.took()
			r.cri.ExitOnTerm("c", 0)
			limited(pod, "a", "2", "8Mi")
			limited(pod, "b", "0.5", "2Mi")
			limited(pod, "c", "2", "4Mi")
			dead := false
			r.record.step = r.step
			r.fail = func(at int, _ string) error {
				if dead = dead || at == n; dead { // nothing runs after the kill
					return killed
				}
				return nil
			}
			result, err := r.manager.SyncPod(r.ctx, pod, r.observe(pod))
			if done = !dead; done && (err != nil || result.ResizeError != nil) {
				t.Fatalf("without a kill: %v, %v", err, result.ResizeError)
			}
			r.fail = nil
			r.manager = executor.New(r.config)
			r.sync(pod)
			r.sync(pod)
			r.wantAll(pod, "sandbox-0:ready a-0:running b-0:running c-0:exited(0) c-1:running")
			r.settled(pod)
		})
	}
}

// TestAResizeIsFinished kills the process before each step in turn, and lets each step fail. In the end the pod's
// cgroup has the limits of its containers, even if only the cgroup is left to change.
func TestAResizeIsFinished(t *testing.T) {
	for _, killed := range []bool{true, false} {
		for n, done := 0, false; !done; n++ {
			t.Run(fmt.Sprintf("killed %v, step %d", killed, n), func(t *testing.T) {
				r := newResizer(t)
				pod := newPod("a", "b")
				limited(pod, "a", "1", "4Mi")
				limited(pod, "b", "1", "4Mi")
				r.sync(pod)
				limited(pod, "a", "0.5", "2Mi")
				limited(pod, "b", "0.5", "8Mi")
				r.took()
				r.record.allocate()
				r.record.step = r.step
				failed := false
				r.fail = func(at int, _ string) error {
					if at == n && (killed || !failed) {
						failed = true
						return errors.New("it fails")
					}
					return nil
				}
				result, err := r.manager.SyncPod(r.ctx, pod, r.observe(pod))
				if done = !failed; done && (err != nil || result.ResizeError != nil) {
					t.Fatalf("without a failure: %v, %v", err, result.ResizeError)
				}
				r.fail = nil
				if killed {
					r.manager = executor.New(r.config)
				}
				unfinished := result.ResizeError != nil
				if unfinished && !resize.InProgress(pod, r.observe(pod), r.record.actuated) {
					t.Error("a resize with a failure is not in progress")
				}
				if result := r.sync(pod); unfinished && !result.Wrote {
					t.Error("the pod is not observed again after the resize")
				}
				r.settled(pod)
			})
		}
	}
}

func TestAPodWithoutACgroupIsResized(t *testing.T) {
	r := newResizer(t, func(c *executor.Config) { c.Cgroups = nil })
	pod := newPod("a")
	limited(pod, "a", "1", "2Mi")
	r.sync(pod)
	limited(pod, "a", "1", "4Mi")
	r.took()
	if result := r.sync(pod); result.ResizeError != nil || result.Cgroup != nil {
		t.Errorf("error %v, cgroup %v", result.ResizeError, result.Cgroup)
	}
	if steps := r.took(); len(steps) != 1 {
		t.Errorf("it has done %v, want exactly one", steps)
	}
}
