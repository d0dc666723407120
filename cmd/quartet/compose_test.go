package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rights"
)

// TestComposeGivesTheRolesThatAreDocumented: each user of docs/security.md has these roles at each service, and no
// others. What a user may call with a role is tried in internal/rpc.
func TestComposeGivesTheRolesThatAreDocumented(t *testing.T) {
	content, err := os.ReadFile("../../deploy/compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var stack struct {
		Services map[string]struct {
			Command []string `json:"command"`
			User    string   `json:"user"`
		} `json:"services"`
	}
	if err := yaml.Unmarshal(content, &stack); err != nil {
		t.Fatal(err)
	}
	uids := map[int]string{10241: "configmux", 10244: "nodestatus", 10245: "metrics", 10246: "quartet"}
	for uid, name := range uids {
		if user, want := stack.Services[name].User, fmt.Sprintf("%d:10240", uid); user != want {
			t.Errorf("%s runs as %q, want %q", name, user, want)
		}
	}
	all := []rights.Role{rights.Observe, rights.Apply, rights.Evict, rights.Admin}
	want := map[layout.Service]map[string][]rights.Role{
		layout.ConfigMux:  {"metrics": {rights.Observe}, "quartet": all},
		layout.PLEG:       {"nodestatus": {rights.Observe}, "metrics": {rights.Observe}, "quartet": all},
		layout.SyncLoop:   {"nodestatus": {rights.Evict}, "metrics": {rights.Observe}, "quartet": all},
		layout.NodeStatus: {"configmux": {rights.Observe}, "metrics": {rights.Observe}, "quartet": all},
	}
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	minimal := []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")
	if err := os.WriteFile(config, minimal, 0o600); err != nil {
		t.Fatal(err)
	}
	for service, users := range want {
		args := []string{"--config=" + config}
		for _, flag := range stack.Services[string(service)].Command {
			if name, _, _ := strings.Cut(flag, "="); strings.HasSuffix(name, "-uids") {
				args = append(args, flag)
			}
		}
		parsed, err := nodeconfig.Parse(service, args, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		for uid, name := range uids {
			for _, role := range rights.Roles() {
				if has := slices.Contains(parsed.Users[role], uid); has != slices.Contains(users[name], role) {
					t.Errorf("at %s, %s has the role %s: %v", service, name, role, has)
				}
			}
		}
	}
}
