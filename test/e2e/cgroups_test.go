package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

const limited = `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: e2e}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: %s
  containers:
  - {name: main, image: %q, args: [%s], resources: {requests: {cpu: 250m}, limits: {cpu: 500m, memory: 64Mi}}}
`

// TestAPodHasItsLimitsInACgroupOfItsOwn checks the cgroup of a pod, with its processes in it, across a kill of
// syncloop, until the pod is removed.
func TestAPodHasItsLimitsInACgroupOfItsOwn(t *testing.T) {
	place(t, "limited.yaml", fmt.Sprintf(limited, "limited", "Always", image, "sleep"))
	p := await(t, "limited", "Ready", ready)
	name := node.PodCgroup(p)
	check := func() {
		t.Helper()
		for _, want := range []struct{ v1File, v1Value, v2File, v2Value string }{
			{"cpu.shares", "256", "cpu.weight", "10"},
			{"cpu.cfs_quota_us", "50000", "cpu.max", "50000 100000"},
			{"memory.limit_in_bytes", "67108864", "memory.max", "67108864"},
		} {
			got, err := livenode.ReadCgroup(name, want.v1File, want.v2File)
			if err != nil || got != want.v1Value && got != want.v2Value {
				t.Errorf("%s or %s of %s is %q, %v, want %s or %s", want.v1File, want.v2File, name, got, err, want.v1Value, want.v2Value)
			}
		}
	}
	check()
	// The processes of its container and of its sandbox are in it.
	if n := processesIn(t, name); n < 2 {
		t.Errorf("%d processes run in %s", n, name)
	}
	before := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", before)
	check()

	takeAway(t, "limited.yaml")
	awaitGone(t, "limited")
	awaitNoCgroup(t, name)
}

// TestAFinishedPodLeavesNoCgroup checks that the cgroup is removed although the manifest still exists.
func TestAFinishedPodLeavesNoCgroup(t *testing.T) {
	place(t, "finished.yaml", fmt.Sprintf(limited, "finished", "Never", image, "init"))
	p := await(t, "finished", "Succeeded", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodSucceeded })
	awaitNoCgroup(t, node.PodCgroup(p))
}

func awaitNoCgroup(t *testing.T, name string) {
	t.Helper()
	awaitThat(t, "the cgroup "+name+" is gone", func() bool {
		dirs, err := livenode.Cgroups(name)
		return err == nil && len(dirs) == 0
	})
}

// processesIn returns the number of processes in a cgroup and below it.
func processesIn(t *testing.T, name string) int {
	t.Helper()
	dirs, err := livenode.Cgroups(name)
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no cgroup %s: %v", name, err)
	}
	below, err := filepath.Glob(dirs[0] + "/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	var n int
	for _, file := range below {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n += len(strings.Fields(string(content)))
	}
	return n
}
