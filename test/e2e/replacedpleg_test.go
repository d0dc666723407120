package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/pythonpleg"
)

// TestANodeRunsWithAPLEGOfSomebodyElse replaces pleg by the one in Python of examples/. A pod from before keeps its
// containers; a new one starts, is restarted after the death of its container, and ends; a kill of the program changes
// nothing.
func TestANodeRunsWithAPLEGOfSomebodyElse(t *testing.T) {
	program := pythonpleg.Program(t)
	place(t, "before.yaml", manifest("before", 1, "sleep"))
	before := containerIDs(await(t, "before", "Ready", ready))

	node.RestartServices(t, "--part-program", "pleg="+program)
	if command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid(t, "pleg"))); err != nil ||
		!strings.Contains(string(command), "pleg.py") {
		t.Fatalf("pleg is %q, %v", command, err)
	}
	place(t, "observed.yaml", manifest("observed", 1, "sleep"))
	first := await(t, "observed", "Ready", ready)
	restarted := func(times int32) func(*v1.Pod) bool {
		return func(p *v1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == times }
	}
	if err := syscall.Kill(processOf(t, bare(first)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := await(t, "observed", "restarted", restarted(1))

	old := pid(t, "pleg")
	kill(t, "pleg")
	awaitNewPID(t, "pleg", old)
	if err := syscall.Kill(processOf(t, bare(second)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "observed", "restarted again", restarted(2))
	takeAway(t, "observed.yaml")
	awaitGone(t, "observed")
	if after := containerIDs(await(t, "before", "Ready", ready)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a pod from before was restarted: %v, now %v", before, after)
	}
}
