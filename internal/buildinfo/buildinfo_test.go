package buildinfo_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The linker sets the version, so a program is linked and run.
func TestAProgramKnowsWhatItWasBuiltFrom(t *testing.T) {
	dir, err := os.MkdirTemp(".", "program")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	source := `package main
import (
	"fmt"
	_ "k8s.io/api/core/v1"
	"github.com/quartet-node/quartet/internal/buildinfo"
)
func main() { fmt.Println(buildinfo.Version(), buildinfo.Kubernetes(), buildinfo.Module("k8s.io/api"), buildinfo.Module("example.org/none")) }
`
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "run", "-ldflags", "-X github.com/quartet-node/quartet/internal/buildinfo.version=v9.9.9", "./"+dir).
		CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fields := strings.Fields(string(out))
	if len(fields) != 3 || fields[0] != "v9.9.9" || !strings.HasPrefix(fields[1], "v1.") ||
		strings.Replace(fields[1], "v1.", "v0.", 1) != fields[2] {
		t.Errorf(
			"it says %q, want its version, Kubernetes' version v1.x and that of the module v0.x, and nothing for a module that is not there",
			fields,
		)
	}
}
