package e2e

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

// resizable is a pod with a fixed UID, so that other sizes of its two containers are an update of the same pod.
const resizable = `apiVersion: v1
kind: Pod
metadata: {name: resizable, namespace: e2e, uid: 5c2b1d1e-0000-4000-8000-00000000e2e1}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %[1]q
    args: [sleep]
    resources: {requests: {cpu: %[2]dm}, limits: {cpu: %[2]dm, memory: %[3]dMi}}
  - {name: side, image: %[1]q, args: [sleep], resources: {requests: {cpu: 50m}, limits: {cpu: %[4]dm, memory: 64Mi}}}
`

// TestARunningPodIsResizedWheneverSyncloopIsKilled: the pod has the last requested size in its status and in its
// cgroup, and no container is restarted.
func TestARunningPodIsResizedWheneverSyncloopIsKilled(t *testing.T) {
	const within = 400 * time.Millisecond
	sizes := []struct{ main, memory, side int }{{300, 128, 100}, {100, 64, 400}, {500, 256, 400}, {200, 64, 100}, {600,
		192, 200}, {100, 128, 100}}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("the moments are those of seed %d", seed)
	place(t, "resizable.yaml", fmt.Sprintf(resizable, image, 200, 64, 200))
	p := await(t, "resizable", "Ready", ready)
	containers, cgroup := containerIDs(p), node.PodCgroup(p)
	for _, size := range sizes {
		place(t, "resizable.yaml", fmt.Sprintf(resizable, image, size.main, size.memory, size.side))
		<-time.After(time.Duration(random.Int64N(int64(within))))
		before := pid(t, "syncloop")
		kill(t, "syncloop")
		awaitNewPID(t, "syncloop", before)
		p = await(t, "resizable", fmt.Sprintf("resized to %v", size), func(p *v1.Pod) bool {
			return ready(p) && condition(p, v1.PodResizePending) == nil && condition(p, v1.PodResizeInProgress) == nil &&
				has(p, "main", size.main, size.memory) && has(p, "side", size.side, 64)
		})
		if got := containerIDs(p); fmt.Sprint(got) != fmt.Sprint(containers) {
			t.Errorf("the containers of size %v are %v, were %v, want %v", size, got, containers, fmt.Sprint(containers))
		}
		wantCgroup(t, cgroup, "memory.limit_in_bytes", "memory.max", strconv.Itoa((size.memory+64)<<20))
		wantCgroup(t, cgroup, "cpu.cfs_quota_us", "cpu.max", strconv.Itoa((size.main+size.side)*100))
	}
	takeAway(t, "resizable.yaml")
	awaitGone(t, "resizable")
	awaitNoCgroup(t, cgroup)
}

// condition returns a condition of a pod; nil when it has none of that type.
func condition(p *v1.Pod, kind v1.PodConditionType) *v1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// has reports whether the status of a container has a CPU limit in thousandths and a memory limit in MiB.
func has(p *v1.Pod, container string, milli, mebibytes int) bool {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == container && c.Resources != nil {
			return c.Resources.Limits.Cpu().MilliValue() == int64(milli) &&
				c.Resources.Limits.Memory().Value() == int64(mebibytes)<<20
		}
	}
	return false
}

// wantCgroup compares a limit of a cgroup. With cgroup v2 the CPU quota is the first of two words.
func wantCgroup(t *testing.T, name, v1File, v2File, want string) {
	t.Helper()
	got, err := livenode.ReadCgroup(name, v1File, v2File)
	if err != nil || got != want && got != want+" 100000" {
		t.Errorf("%s or %s of %s is %q, %v, want %s", v1File, v2File, name, got, err, want)
	}
}

// TestAResizeThatDoesNotFitIsDeferred checks that it is deferred, also after a kill of syncloop, until a smaller size
// is requested.
func TestAResizeThatDoesNotFitIsDeferred(t *testing.T) {
	place(t, "resizable.yaml", fmt.Sprintf(resizable, image, 200, 64, 200))
	p := await(t, "resizable", "Ready", ready)
	containers := containerIDs(p)
	deferred := func(p *v1.Pod) bool {
		c := condition(p, v1.PodResizePending)
		return ready(p) && c != nil && c.Reason == v1.PodReasonDeferred && has(p, "main", 200, 64)
	}
	place(t, "resizable.yaml", fmt.Sprintf(resizable, image, 900_000, 64, 200))
	await(t, "resizable", "deferred", deferred)
	before := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", before)
	await(t, "resizable", "deferred after a kill", deferred)
	place(t, "resizable.yaml", fmt.Sprintf(resizable, image, 250, 64, 200))
	p = await(t, "resizable", "resized", func(p *v1.Pod) bool {
		return ready(p) && condition(p, v1.PodResizePending) == nil && has(p, "main", 250, 64)
	})
	if got := containerIDs(p); fmt.Sprint(got) != fmt.Sprint(containers) {
		t.Errorf("the containers are %v, were %v, want %v", got, containers, fmt.Sprint(containers))
	}
	takeAway(t, "resizable.yaml")
	awaitGone(t, "resizable")
}
