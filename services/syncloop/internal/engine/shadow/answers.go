package shadow

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
)

// answers are the results of probes as the syncloop that runs has published them in the statuses of pods. The shadow
// calls no probe, because containers would notice.
type answers struct {
	changes chan prober.Change
	// wake has room for one signal: there are changed pods.
	wake chan struct{}

	mu      sync.Mutex
	changed map[types.UID]bool
	// pods has the results of the containers of each pod, by container ID.
	pods map[types.UID]map[string]answer
}

// answer is what a status says of a container.
type answer struct{ ready, started bool }

func newAnswers() *answers {
	return &answers{
		changes: make(chan prober.Change), wake: make(chan struct{}, 1),
		changed: map[types.UID]bool{}, pods: map[types.UID]map[string]answer{},
	}
}

// learn takes the results from the status of a pod.
func (a *answers) learn(pod *v1.Pod) {
	fresh := map[string]answer{}
	for _, list := range [][]v1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			_, id, _ := strings.Cut(list[i].ContainerID, "://")
			fresh[id] = answer{ready: list[i].Ready, started: list[i].Started != nil && *list[i].Started}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if maps.Equal(a.pods[pod.UID], fresh) {
		return
	}
	a.pods[pod.UID], a.changed[pod.UID] = fresh, true
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run tells the loop of changed results until ctx ends.
func (a *answers) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-a.wake:
		}
		a.mu.Lock()
		changed := a.changed
		a.changed = map[types.UID]bool{}
		a.mu.Unlock()
		for uid := range changed {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case a.changes <- prober.Change{Pod: uid}:
			}
		}
	}
}

// drop forgets a pod that the syncloop that runs does not have any more.
func (a *answers) drop(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.pods, uid)
}

func (a *answers) of(containerID string) answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pod := range a.pods {
		if one, ok := pod[containerID]; ok {
			return one
		}
	}
	return answer{}
}

// Startup is the Startup of decide.Facts.
func (a *answers) Startup(containerID string) decide.ProbeResult {
	if a.of(containerID).started {
		return decide.Success
	}
	return decide.Unknown
}

// Changes implements loop.Probes.
func (a *answers) Changes() <-chan prober.Change { return a.changes }

// UIDs implements loop.Probes. There is nothing to forget: the results are those of the syncloop that runs.
func (a *answers) UIDs() []types.UID { return nil }

// Forget implements loop.Probes and podstore.Probes.
func (a *answers) Forget(types.UID) {}

// Observe implements podstore.Probes. It starts no probe.
func (a *answers) Observe(*v1.Pod, *lifecyclev1.PodStatus, string, bool) {}

// Ready implements podstore.Probes.
func (a *answers) Ready(containerID string) bool { return a.of(containerID).ready }

// Started implements podstore.Probes.
func (a *answers) Started(containerID string) bool { return a.of(containerID).started }

// Unhealthy implements podstore.Probes.
func (a *answers) Unhealthy(string) bool { return false }

// Since implements podstore.Probes.
func (a *answers) Since(string) time.Time { return time.Time{} }
