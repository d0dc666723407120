package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestUpdatesInEachModeHaveThePodsOfARealConfigmux(t *testing.T) {
	place(t, "modes.yaml", manifest("modes", 1, "sleep"))
	await(t, "modes", "Ready", ready)
	type pod struct {
		Metadata struct{ Name string }
	}
	for mode, op := range map[string]string{"incremental": "ADD", "snapshot": "SET", "snapshot-and-updates": "SET"} {
		var ops, names []string
		for line := range strings.Lines(quartet(t, "updates", "--mode", mode, "-o", "json", "-n", "e2e")) {
			var m struct {
				Op  string
				Pod *pod
				Set *struct{ Pods []struct{ Pod pod } }
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("%s: %v: %s", mode, err, line)
			}
			if m.Pod != nil {
				names = append(names, m.Pod.Metadata.Name)
			}
			if m.Set != nil {
				for _, p := range m.Set.Pods {
					names = append(names, p.Pod.Metadata.Name)
				}
			}
			ops = append(ops, m.Op)
		}
		if got := strings.Join(names, " "); !strings.HasPrefix(got, "modes-") || len(names) != 1 {
			t.Errorf("%s: the pods are %q, want the one that is desired", mode, got)
		}
		if ops[0] != "OPENED" || !slices.Contains(ops, op) || ops[len(ops)-1] != "SYNCED" {
			t.Errorf("%s: the messages are %v, want %s among them, and the marker at the end", mode, ops, op)
		}
	}
	takeAway(t, "modes.yaml")
	awaitGone(t, "modes")
}
