package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/podlabels"
)

// deeds records the test's actions on the node, to distinguish their consequences from what the node does by itself.
type deeds struct {
	mu sync.Mutex
	// ended and removed have the IDs of the containers and sandboxes that were killed, stopped or removed; removed only
	// those whose record the runtime has lost.
	ended, removed map[string]bool
	// runtimeKilled are the times of the kills of the runtime, callerKilled those of the kills of syncloop.
	runtimeKilled, callerKilled []time.Time
	// changed are the times at which the manifest of a pod was written or removed, by the pod's name in it.
	changed map[string][]time.Time
	// taken are those of changed at which it was removed, so that a life of the pod ends.
	taken map[string][]time.Time
}

func newDeeds() *deeds {
	return &deeds{
		ended: map[string]bool{}, removed: map[string]bool{},
		changed: map[string][]time.Time{}, taken: map[string][]time.Time{},
	}
}

func (d *deeds) noteChange(pod string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changed[pod] = append(d.changed[pod], time.Now())
}

func (d *deeds) noteRemoval(pod string) {
	d.noteChange(pod)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken[pod] = append(d.taken[pod], time.Now())
}

func (d *deeds) noteKill(process string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch process {
	case containerd:
		d.runtimeKilled = append(d.runtimeKilled, time.Now())
	case string(layout.SyncLoop):
		d.callerKilled = append(d.callerKilled, time.Now())
	}
}

// note records an action on a container or a sandbox before it happens, even if the runtime then fails.
func (d *deeds) note(id string, removed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended[id] = true
	if removed {
		d.removed[id] = true
	}
}

const containerd = "containerd"

// processes returns the names of the node's processes.
func processes() []string {
	names := []string{containerd}
	for _, s := range layout.Services() {
		names = append(names, string(s))
	}
	return names
}

// killProcesses kills some processes of the node and returns their names.
func killProcesses(t *testing.T, n *testNode, d *deeds, random *rand.Rand) string {
	t.Helper()
	names := processes()
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	// Mostly one, sometimes several, up to all.
	count := 1
	for count < len(names) && random.IntN(3) == 0 {
		count++
	}
	return kill(t, n, d, names[:count])
}

// killAll kills all processes of the node, as the last action on it. A syncloop that was killed during a start may have
// left containerd a task that it removes only when it is restarted ("cannot delete running task"); no client can repair
// that.
func killAll(t *testing.T, n *testNode, d *deeds) string {
	t.Helper()
	return kill(t, n, d, processes())
}

func kill(t *testing.T, n *testNode, d *deeds, names []string) string {
	t.Helper()
	for _, name := range names {
		d.noteKill(name)
		n.kill(t, name)
	}
	return "kill " + strings.Join(names, ", ")
}

// harm ends a container behind the node's back, mostly by a signal to its process, and sometimes by having the runtime
// stop or remove it or its whole sandbox. It returns a description.
func (r runtime) harm(ctx context.Context, d *deeds, random *rand.Rand) string {
	all, err := r.containers(ctx)
	if err != nil {
		return "harm nothing: " + status.Code(err).String()
	}
	all = slices.DeleteFunc(all, func(c *runtimeapi.Container) bool {
		return c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || isSteady(c.GetLabels()[podlabels.PodName])
	})
	if len(all) == 0 {
		return "harm nothing: nothing runs"
	}
	// so that the seed determines the choice
	slices.SortFunc(all, func(a, b *runtimeapi.Container) int { return strings.Compare(nameOf(a), nameOf(b)) })
	c := all[random.IntN(len(all))]
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id, sandbox := c.GetId(), c.GetPodSandboxId()
	did := ""
	switch n := random.IntN(10); {
	case n < 5:
		did = "kill the process of"
		err = r.killProcess(ctx, d, id)
	case n < 6:
		did = "stop"
		d.note(id, false)
		_, err = r.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: random.Int64N(2)})
	case n < 7:
		did = "remove"
		d.note(id, true)
		_, err = r.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
	case n < 9:
		did = "stop the sandbox of"
		d.note(sandbox, false)
		_, err = r.client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
	default:
		did = "remove the sandbox of"
		d.note(sandbox, true)
		_, err = r.client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
	}
	did += " " + nameOf(c) + " (" + id[:12] + ")"
	if err != nil { // the runtime was killed, or the container has ended in the meantime
		did += ": " + status.Code(err).String()
	}
	return did
}

func nameOf(c *runtimeapi.Container) string {
	return c.GetLabels()[podlabels.PodName] + "/" + c.GetLabels()[podlabels.ContainerName]
}

// killProcess kills the program of a container, as a crash would end it.
func (r runtime) killProcess(ctx context.Context, d *deeds, id string) error {
	resp, err := r.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return err
	}
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(resp.GetInfo()["info"]), &info); err != nil {
		return fmt.Errorf("container %s: what the runtime tells of it: %w", id, err)
	}
	// A process that has ended has no cgroup, and its id may have been reused.
	if of, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", info.PID)); err != nil || !strings.Contains(string(of), id) {
		return status.Error(codes.NotFound, "it has ended")
	}
	d.note(id, false)
	if err := syscall.Kill(info.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %d: %w", info.PID, err)
	}
	return nil
}
