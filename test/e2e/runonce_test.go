package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestRunOnce: the desired pods are started, reported and left running, and a pod that cannot run makes the command
// fail.
func TestRunOnce(t *testing.T) {
	node.StopServicesMeanwhile(t)
	place(t, "once.yaml", manifest("once", 1, "sleep"))
	once := func() (string, error) {
		return node.Command(t.Context(), "node", "--run-once", "--config", node.Layout.ConfigFile())
	}
	out, err := once()
	if err != nil || !hasLine(out, "e2e", "once-", "Running") {
		t.Fatalf("%v\n%s", err, out)
	}

	// No machine has this many processors.
	greedy := strings.Replace(manifest("once-fails", 1, "sleep"), "  - {name: main,", `  - {name: main, resources: {requests: {cpu: "100000"}},`, 1)
	place(t, "fails.yaml", greedy)
	out, err = once()
	if err == nil || !hasLine(out, "e2e", "once-", "Running") || !hasLine(out, "e2e", "once-fails-", "Failed") || !strings.Contains(out, "OutOfcpu") ||
		!strings.Contains(fmt.Sprint(err), "1 of 2 pods do not run: e2e/once-fails-") {
		t.Errorf("%v\n%s", err, out)
	}
}

// hasLine reports whether a line of a table has a namespace, a prefix of a pod's name, and a state.
func hasLine(out, namespace, pod, state string) bool {
	for line := range strings.Lines(out) {
		cells := strings.Fields(line)
		if len(cells) >= 3 && cells[0] == namespace && strings.HasPrefix(cells[1], pod) && cells[2] == state {
			return true
		}
	}
	return false
}
