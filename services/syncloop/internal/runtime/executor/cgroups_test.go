package executor_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// cgroups holds the cgroups of pods in memory.
type cgroups struct {
	mu   sync.Mutex
	have map[types.UID]bool
	err  error
	// now holds the cpu and memory limits of the cgroups, uses the memory usage of pods. The limits of a pod are those in
	// its spec.
	now  map[types.UID]resources.Resources
	uses uint64
	// protect is how memory is protected below the limits.
	protect resources.MemoryQoS
	// step is called with each partial change of a cgroup, and may reject it.
	step func(string) error
	// podDirs is checked for the folder of a pod when its cgroup is created.
	podDirs  string
	noFolder bool
}

func (c *cgroups) Ensure(_ context.Context, pod *v1.Pod) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return "", c.err
	}
	if _, err := os.Stat(filepath.Join(c.podDirs, string(pod.UID))); err != nil {
		c.noFolder = true
	}
	c.have[pod.UID] = true
	if c.now == nil {
		c.now = map[types.UID]resources.Resources{}
	}
	c.now[pod.UID] = resources.ForPod(pod, c.limits())
	return "/kubepods/pod" + string(pod.UID), nil
}

func (c *cgroups) limits() resources.Limits {
	return resources.Limits{CPUQuota: true, MemoryQoS: c.protect}
}

func (c *cgroups) Name(pod *v1.Pod) (string, bool) {
	return "/kubepods/pod" + string(pod.UID), c.has(pod.UID)
}

func (c *cgroups) Given(pod *v1.Pod) (has, wants resources.Resources, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has, found := c.now[pod.UID]
	if !found {
		return has, has, fs.ErrNotExist
	}
	return has, resources.ForPod(pod, c.limits()), nil
}

func (c *cgroups) Limit(pod *v1.Pod, part resources.Resources) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	has, what := c.now[pod.UID], ""
	switch {
	case part.Memory != 0:
		has.Memory, what = part.Memory, fmt.Sprintf("memory limit %d", part.Memory)
		if part.Unified != nil {
			has.Unified, what = part.Unified, what+fmt.Sprint(" ", part.Unified)
		}
	case part.CPUQuota != 0:
		has.CPUQuota, has.CPUPeriod, what = part.CPUQuota, part.CPUPeriod, fmt.Sprintf("cpu limit %d", part.CPUQuota)
	default:
		has.CPUShares, what = part.CPUShares, fmt.Sprintf("cpu shares %d", part.CPUShares)
	}
	if c.step != nil {
		if err := c.step("pod: " + what); err != nil {
			return err
		}
	}
	c.now[pod.UID] = has
	return nil
}

func (c *cgroups) MemoryUsage(*v1.Pod) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uses, nil
}

func (c *cgroups) Remove(_ context.Context, uid types.UID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		delete(c.have, uid)
		delete(c.now, uid)
	}
	return c.err
}

func (c *cgroups) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

func (c *cgroups) has(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.have[uid]
}

// parents records the parent cgroup of each sandbox and each container.
type parents struct {
	internalapi.RuntimeService
	seen map[string]bool
}

func (p parents) RunPodSandbox(
	ctx context.Context,
	config *runtimeapi.PodSandboxConfig,
	handler string,
) (string, error) {
	p.seen["sandbox "+config.GetLinux().GetCgroupParent()] = true
	return p.RuntimeService.RunPodSandbox(ctx, config, handler)
}

func (p parents) CreateContainer(
	ctx context.Context,
	sandbox string,
	config *runtimeapi.ContainerConfig,
	of *runtimeapi.PodSandboxConfig,
) (string, error) {
	p.seen["container "+of.GetLinux().GetCgroupParent()] = true
	return p.RuntimeService.CreateContainer(ctx, sandbox, config, of)
}

// withCgroups returns a node whose pods have cgroups.
func withCgroups(t *testing.T, events *recordedEvents) (*node, *cgroups, map[string]bool) {
	t.Helper()
	made, seen := &cgroups{have: map[types.UID]bool{}}, map[string]bool{}
	n := newNode(t, func(c *executor.Config) {
		c.Cgroups, made.podDirs = made, filepath.Join(c.RootDir, "pods")
		if events != nil {
			c.Events = events
		}
		inner := c.Runtime
		c.Runtime = func() (internalapi.RuntimeService, error) {
			runtime, err := inner()
			return parents{runtime, seen}, err
		}
	})
	return n, made, seen
}

func TestAPodIsPutIntoItsCgroup(t *testing.T) {
	n, made, seen := withCgroups(t, nil)
	pod := newPod("main")
	n.sync(pod)
	n.want(pod, "sandbox-0:ready main-0:running")
	if !seen["sandbox /kubepods/podu-1"] || !seen["container /kubepods/podu-1"] || len(seen) != 2 {
		t.Errorf("sandbox and container are in %v", seen)
	}
	if made.noFolder {
		t.Error("the cgroup was created before the pod's folder")
	}
	// Its next container gets the same cgroup in the existing sandbox.
	pod.Spec.Containers[0].Image = "image:2"
	clear(seen)
	n.sync(pod)
	if !seen["container /kubepods/podu-1"] || len(seen) != 1 {
		t.Errorf("the second container is in %v", seen)
	}
}

func TestWithoutCgroupsForPodsAllAreInOne(t *testing.T) {
	seen := map[string]bool{}
	n := newNode(t, func(c *executor.Config) {
		inner := c.Runtime
		c.Runtime = func() (internalapi.RuntimeService, error) {
			runtime, err := inner()
			return parents{runtime, seen}, err
		}
	})
	pod := newPod("main")
	n.sync(pod)
	if !seen["sandbox /kubepods"] || len(seen) != 2 {
		t.Errorf("sandbox and container are in %v", seen)
	}
	if err := n.manager.ReleasePod(n.ctx, pod); err != nil {
		t.Error(err)
	}
}

func TestAPodWhoseCgroupCannotBeMadeIsNotStarted(t *testing.T) {
	events := &recordedEvents{}
	n, made, _ := withCgroups(t, events)
	made.fail(errors.New("make the cgroup /kubepods/podu-1: controller memory: read-only file system"))
	pod := newPod("main")
	result, err := n.manager.SyncPod(n.ctx, pod, n.observe(pod))
	if !errors.As(err, new(*executor.CgroupError)) || !errors.As(result.SandboxError, new(*executor.CgroupError)) ||
		!strings.Contains(err.Error(), "controller memory") {
		t.Errorf("got %v, %v", err, result.SandboxError)
	}
	n.want(pod, "")
	if text := events.take(); !strings.Contains(text, "Warning FailedCreatePodContainer [] unable to ensure pod container exists: ") {
		t.Errorf("the events are\n%s\nwant text with %q",
			text, "Warning FailedCreatePodContainer [] unable to ensure pod container exists: ")
	}
	made.fail(nil)
	n.sync(pod)
	n.want(pod, "sandbox-0:ready main-0:running")
}

func TestACgroupGoesWithItsPod(t *testing.T) {
	n, made, _ := withCgroups(t, nil)
	pod := newPod("main")
	n.sync(pod)
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 0); err != nil {
		t.Fatal(err)
	}
	made.fail(errors.New("device or resource busy"))
	if err := n.manager.CleanUpPod(n.ctx, pod, n.observe(pod)); err == nil ||
		!strings.Contains(err.Error(), "device or resource busy") {
		t.Errorf("its cgroup cannot be removed: %v", err)
	}
	left, err := n.manager.Leftovers()
	if err != nil || len(left) == 0 {
		t.Fatalf("the pod is not found again: %v, %v", left, err)
	}
	made.fail(nil)
	if err := n.manager.CleanUpPod(n.ctx, left[0], &lifecyclev1.PodStatus{Uid: string(pod.UID)}); err != nil {
		t.Fatal(err)
	}
	if left, err := n.manager.Leftovers(); made.has(pod.UID) || err != nil || len(left) > 0 {
		t.Errorf("there are left: its cgroup %v, %v, %v", made.has(pod.UID), left, err)
	}
}

func TestACgroupGoesWhenNothingOfThePodRuns(t *testing.T) {
	n, made, _ := withCgroups(t, nil)
	pod := newPod("main")
	n.sync(pod)
	if err := n.manager.KillPod(n.ctx, pod, n.observe(pod), 0); err != nil {
		t.Fatal(err)
	}
	if err := n.manager.ReleasePod(n.ctx, pod); err != nil || made.has(pod.UID) {
		t.Errorf("%v, has a cgroup: %v", err, made.has(pod.UID))
	}
	if got := n.describe(pod); !strings.Contains(got, "main-0:exited") {
		t.Errorf("the records of the end of the pod were removed: %s", got)
	}
}
