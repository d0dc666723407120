package kubeletcmd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// kubeletFlag matches the registration of a flag in the kubelet's source: the variable, and the name.
var kubeletFlag = regexp.MustCompile(`(?m)^\s*fs\.\w*Var\w*\((.*?), "([a-z0-9-]+)", `)

// TestEveryFlagOfTheKubeletIsKnown compares with the source of the kubelet in the product's version of Kubernetes.
func TestEveryFlagOfTheKubeletIsKnown(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(
		filepath.Join(strings.TrimSpace(string(out)), "cmd", "kubelet", "app", "options", "options.go"),
	)
	if err != nil {
		t.Fatal(err)
	}
	flags := kubeletFlag.FindAllStringSubmatch(string(source), -1)
	if len(flags) < 120 {
		t.Fatalf("only %d flags are found in the source", len(flags))
	}
	opts := newOptions()
	for _, flag := range flags {
		variable, name := flag[1], flag[2]
		if opts.set.Lookup(name) == nil {
			t.Errorf("--%s of the kubelet is not known", name)
			continue
		}
		if _, sets := opts.fields[name]; strings.Contains(variable, "&c.") && !sets {
			t.Errorf("--%s sets a field of the kubelet (%s), and none here", name, variable)
		}
	}
}
