package compose

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/test/harness"
	"github.com/quartet-node/quartet/test/leftovers"
)

// TestTheMachinesOwnRuntime: without the bundled containerd the services use the machine's, and its pods stay when the
// stack is removed.
func TestTheMachinesOwnRuntime(t *testing.T) {
	leftovers.Watch(t)
	// Nothing ends the pods of a runtime that is not the bundled one, so nothing removes the parents of their cgroups.
	var cgroups string
	t.Cleanup(func() {
		if cgroups == "" {
			return
		}
		if err := bundle.RemoveCgroups(cgroups); err != nil {
			t.Error(err)
		}
	})
	runtime := harness.StartContainerd(t)
	s := newStack(t)
	cgroups = s.node.Layout.CgroupRoot()
	s.env = append(s.env, "COMPOSE_PROFILES=host", "CRI_SOCKET_DIR="+filepath.Dir(runtime.Socket), "OTEL_EXPORTER_OTLP_ENDPOINT=", "OTLP_ENDPOINT_IN_NETWORK=")
	s.compose("up", "--detach")
	s.place("web", manifest("web"))
	before := instances(s.awaitReady("web"))
	if services := s.compose("ps", "--services"); strings.Contains(services, "containerd") || strings.Contains(services, "jaeger") {
		t.Errorf("profile host runs\n%s\nwant text without %q and without %q", services, "containerd", "jaeger")
	}

	s.compose("down")
	s.compose("up", "--detach")
	if now := instances(s.awaitReady("web")); now != before {
		t.Errorf("after down and up the pod is another:\nbefore %s\nafter  %s", before, now)
	}
	s.compose("down")
	s.compose("run", "--rm", "-T", "prepare", "--undo")
}

// TestProblemsAreReportedInALine: each of these errors ends with an instruction.
func TestProblemsAreReportedInALine(t *testing.T) {
	leftovers.Watch(t)
	s := newStack(t)
	for name, tc := range map[string]struct {
		env, args []string
		want      []string
	}{
		"the state directory of quartet up": {
			[]string{"QUARTET_STATE_DIR=/var/lib/quartet"}, []string{"run", "--rm", "-T", "prepare"}, []string{"--state-dir /var/lib/quartet", "choose another"},
		},
		"a configuration that is wrong": {
			[]string{"QUARTET_CONFIG=" + badConfig(t)}, []string{"run", "--rm", "-T", "--no-deps", "pleg"}, []string{"/etc/quartet/kubelet.yaml:3", "staticPodPaht"},
		},
		"an image that was not built": {
			[]string{"PLEG_VERSION=nobody-built-this"}, []string{"run", "--rm", "-T", "--no-deps", "pleg"}, []string{"nobody-built-this.yaml"},
		},
		"an image that the engine does not have": {
			[]string{"PLEG_VERSION=" + s.pinned("lost", "pleg", "sha256:"+strings.Repeat("0", 64))},
			[]string{"run", "--rm", "-T", "--no-deps", "pleg"}, []string{"sha256:000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := *s.on(t)
			wrong.env = append(append([]string{}, s.env...), tc.env...)
			_, err := wrong.tryCompose(tc.args...)
			if err == nil {
				t.Fatal("it goes well")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it is not said that %q: %v", want, err)
				}
			}
		})
	}
}
