package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
)

// TestUnitsStartWhatThereIs: each systemd unit starts an existing binary, at the path of an installation, with flags
// that it accepts.
func TestUnitsStartWhatThereIs(t *testing.T) {
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(
		config,
		[]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"),
		0o600,
	); err != nil {
		t.Fatal(err)
	}
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	if err != nil {
		t.Fatal(err)
	}
	var started []string
	for _, unit := range units {
		content, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		_, line, _ := strings.Cut(string(content), "\nExecStart=")
		line, _, _ = strings.Cut(line, "\n")
		line = strings.ReplaceAll(line, "/etc/quartet/kubelet.yaml", config)
		program, flags, _ := strings.Cut(line, " ")
		started = append(started, program)
		// The operator's flags come after those; they are empty by default. This machine need not know the units' users.
		args := strings.Fields(os.Expand(flags, func(name string) string {
			_, value, ok := strings.Cut(string(content), "\nEnvironment="+name+"=")
			value, _, _ = strings.Cut(value, "\n")
			if !ok || value != "" && !strings.HasSuffix(name, "_ROLES") {
				t.Errorf("%s: %s has no value", unit, name)
			}
			if flag, _, isRole := strings.Cut(value, "=quartet-"); isRole {
				return flag + "=1"
			}
			return "--v=2"
		}))
		if filepath.Base(program) != "quartet" {
			if _, err := nodeconfig.Parse(layout.Service(filepath.Base(program)), args, io.Discard); err != nil {
				t.Errorf("%s: %v", unit, err)
			}
			continue
		}
		cmd, rest, err := root().Find(args)
		if err != nil || cmd.Name() != "node" {
			t.Errorf("%s: starts %q: %v, want %q", unit, cmd.Name(), err, "node")
		} else if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%s: %v", unit, err)
		}
	}
	want := []string{"/usr/local/bin/quartet"}
	for _, service := range layout.Services() {
		want = append(want, "/usr/local/libexec/quartet/"+string(service))
	}
	slices.Sort(want)
	slices.Sort(started)
	if !slices.Equal(started, want) {
		t.Errorf("the units start %v, want %v", started, want)
	}
}
