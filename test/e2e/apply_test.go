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
		t.Errorf("apply prints %q", out)
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
