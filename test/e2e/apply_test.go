package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnAppliedPodRunsUntilItIsDeleted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "applied.yaml")
	if err := os.WriteFile(file, []byte(manifest("applied", 1, "sleep")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := quartet(t, "apply", "-f", file); !strings.HasPrefix(out, "pod/e2e/applied-") || !strings.HasSuffix(out, " created\n") {
		t.Errorf("apply prints %q, want text beginning with %q and ending with %q", out, "pod/e2e/applied-", " created\n")
	}
	before := containerIDs(await(t, "applied", "Ready", ready))
	kill(t, "configmux")
	awaitThat(t, "configmux serves again", func() bool {
		out, err := node.Command(t.Context(), "apply", "-f", file)
		return err == nil && strings.HasSuffix(out, " unchanged\n")
	})
	if p := await(t, "applied", "Ready", ready); fmt.Sprint(containerIDs(p)) != fmt.Sprint(before) {
		t.Error("the pod was restarted by the kill of configmux")
	}
	quartet(t, "delete", "-f", file)
	awaitGone(t, "applied")
}

// A list is handled like its items, as users of kubectl expect; an acknowledged list survives a kill.
func TestTheItemsOfAListRunUntilTheyAreDeleted(t *testing.T) {
	item := func(name string) string {
		return "- " + strings.ReplaceAll(strings.TrimSpace(manifest(name, 1, "sleep")), "\n", "\n  ") + "\n"
	}
	file := filepath.Join(t.TempDir(), "list.yaml")
	list := "apiVersion: v1\nkind: List\nitems:\n" + item("listed1") + item("listed2")
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := quartet(t, "apply", "-f", file, "--dry-run"); strings.Count(out, " created (dry run)\n") != 2 {
		t.Errorf("apply --dry-run prints %q, want %q 2 times", out, " created (dry run)\n")
	}
	if out := quartet(t, "apply", "-f", file); strings.Count(out, " created\n") != 2 {
		t.Errorf("apply prints %q, want %q 2 times", out, " created\n")
	}
	kill(t, "configmux")
	await(t, "listed1", "Ready", ready)
	await(t, "listed2", "Ready", ready)
	awaitThat(t, "configmux serves again", func() bool {
		out, err := node.Command(t.Context(), "delete", "-f", file)
		return err == nil && out == "pod/e2e/listed1 deleted\npod/e2e/listed2 deleted\n"
	})
	awaitGone(t, "listed1")
	awaitGone(t, "listed2")
}
