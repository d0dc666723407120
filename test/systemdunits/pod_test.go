package systemdunits

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/harness"
)

// pod is a static pod in a runtime of the test, which is not a part of any unit.
type pod struct {
	runtime  internalapi.RuntimeService
	endpoint string
	// container is the ID of its only container, once it runs.
	container string
}

// startPod starts a runtime, and writes the configuration of the units and the manifest of a pod for them.
func startPod(t *testing.T) *pod {
	t.Helper()
	endpoint := harness.StartContainerd(t).Endpoint
	web := &pod{runtime: harness.ConnectCRI(t.Context(), t, endpoint).Runtime, endpoint: endpoint}
	web.configure(t, "")
	must(t, os.WriteFile(filepath.Join(manifests, "web.yaml"), fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: %q, args: [sleep]}
`, bundle.HelloImage), 0o644))
	return web
}

// configure writes the configuration of the units, with more fields.
func (p *pod) configure(t *testing.T, more string) {
	t.Helper()
	must(t, os.WriteFile(kubeletYAML, []byte(config+"containerRuntimeEndpoint: "+p.endpoint+"\n"+more), 0o644))
}

// starts waits until the pod is Ready for the first time.
func (p *pod) starts(t *testing.T) {
	t.Helper()
	p.awaitReady(t, "its start")
	if running := p.containers(t); len(running) == 1 {
		p.container = running[0]
	} else {
		t.Fatalf("the pod has the containers %q, want one", running)
	}
}

// noticesNothing checks that the node shows the pod as Ready, with the container that it had before.
func (p *pod) noticesNothing(t *testing.T, after string) {
	t.Helper()
	p.awaitReady(t, after)
	p.runsOn(t, after)
}

// runsOn checks that the pod has the container that it had before, and that it runs.
func (p *pod) runsOn(t *testing.T, after string) {
	t.Helper()
	if all := p.containers(t); !slices.Equal(all, []string{p.container}) {
		t.Errorf("after %s the pod has the containers %q, want %q alone", after, all, p.container)
	}
}

// awaitReady waits until the command line shows the pod as running, Ready and never restarted.
func (p *pod) awaitReady(t *testing.T, after string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	last := ""
	wait := eventually.Wait{State: func() string { return last }, Interval: 100 * time.Millisecond}
	wait.That(t, "the pod is Ready after "+after, func() bool {
		out, err := exec.CommandContext(ctx, program, "get", "pods").CombinedOutput()
		last = string(out)
		_, row, _ := strings.Cut(last, "\n") // after the headings
		fields := strings.Fields(row)
		return err == nil && len(fields) >= 4 && strings.HasPrefix(fields[0], "web-") &&
			slices.Equal(fields[1:4], []string{"1/1", "Running", "0"})
	})
}

// containers returns the IDs of the containers of the runtime, and of those that do not run with their state.
func (p *pod) containers(t *testing.T) []string {
	t.Helper()
	list, err := p.runtime.ListContainers(t.Context(), nil)
	must(t, err)
	var all []string
	for _, c := range list {
		id := c.GetId()
		if c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			id += " " + c.GetState().String()
		}
		all = append(all, id)
	}
	return all
}
