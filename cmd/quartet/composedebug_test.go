package main

import (
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/layout"
)

// TestOnlyTheDebuggerMayTrace: deploy/compose/compose.debug.yaml gives SYS_PTRACE to the container of the debugger, and
// nothing to others; and no process runs under guard, which would end one that a breakpoint stops.
func TestOnlyTheDebuggerMayTrace(t *testing.T) {
	content, err := os.ReadFile("../../deploy/compose/compose.debug.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type container struct {
		Entrypoint  []string `json:"entrypoint"`
		CapAdd      []string `json:"cap_add"`
		CapDrop     []string `json:"cap_drop"`
		SecurityOpt []string `json:"security_opt"`
		Privileged  bool     `json:"privileged"`
	}
	var file struct {
		Services map[string]container `json:"services"`
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	debugger := file.Services["debugger"]
	delete(file.Services, "debugger")
	if !slices.Equal(debugger.CapAdd, []string{"SYS_PTRACE"}) || !slices.Equal(debugger.CapDrop, []string{"ALL"}) ||
		debugger.Privileged {
		t.Errorf("the debugger has %+v, want SYS_PTRACE alone", debugger)
	}
	for name, c := range file.Services {
		if len(c.CapAdd) > 0 || len(c.SecurityOpt) > 0 || c.Privileged {
			t.Errorf("%s gets %+v, want nothing", name, c)
		}
	}
	for _, service := range layout.Services() {
		if got := file.Services[string(service)].Entrypoint; !slices.Equal(got, []string{"/" + string(service)}) {
			t.Errorf("%s is started by %q, want without guard", service, got)
		}
	}
}
