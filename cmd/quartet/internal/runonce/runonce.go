// Package runonce waits until the pods that are desired at one moment run, for `quartet node --run-once`. It reads the
// desired pods from configmux once and follows their state in syncloop, which retries by itself.
package runonce

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
)

// The kubelet checked a pod ten times, with a pause of 1 s after the first check that doubled each time: 17 min in
// total.
const (
	tries      = 10
	firstPause = time.Second
)

// Config holds the parameters of Run.
type Config struct {
	// ConfigMux and SyncLoop are connections to the services of the node, which may not run yet.
	ConfigMux, SyncLoop grpc.ClientConnInterface
	Clock               clock.Clock
	// Progress receives a line for each check of a pod that does not run.
	Progress io.Writer
}

// Result is the result of one pod.
type Result struct {
	// Pod is its namespace and name.
	Pod types.NamespacedName
	// Err is why it does not run; nil if it runs or has succeeded.
	Err error
	// State is its state: Running, Succeeded, Failed or Pending.
	State string
}

// UnansweredError names the sources that were not ready when the pods were read. Their pods are unknown.
type UnansweredError struct {
	Sources []string
}

// Error implements error.
func (e *UnansweredError) Error() string {
	return fmt.Sprintf(
		"sources that did not answer: %s: their pods are unknown and were not waited for; check that they are reachable, "+
			"and 'quartet get sources' while the node runs",
		strings.Join(e.Sources, ", "),
	)
}

// Run reads the desired pods when each source is ready, or after the second that configmux waits for them, and returns
// the result of each, sorted by namespace and name: those that run, have ended, or do not run after the last try. It
// fails if ctx ends, or if data of configmux cannot be decoded. If a source is not ready, it returns the results of the
// others with an *UnansweredError.
func Run(ctx context.Context, cfg Config) ([]Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pods, silent, err := desired(ctx, cfg.ConfigMux)
	if err != nil {
		return nil, err
	}
	states := &board{pods: map[types.UID]*v1.Pod{}, changed: make(chan struct{})}
	var following sync.WaitGroup
	following.Go(func() { follow(ctx, cfg, states) })
	results := make([]Result, len(pods))
	var waiting sync.WaitGroup
	for i, pod := range pods {
		waiting.Go(func() { results[i] = await(ctx, cfg, states, pod) })
	}
	waiting.Wait()
	err = ctx.Err()
	cancel()
	following.Wait()
	if err == nil && len(silent) > 0 {
		err = &UnansweredError{Sources: silent}
	}
	return results, err
}

// desired reads one update of configmux: the pods, and the sources that are not ready.
func desired(ctx context.Context, conn grpc.ClientConnInterface) (pods []*v1.Pod, silent []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := configv1.NewConfigServiceClient(conn).WatchPodUpdates(ctx,
		&configv1.WatchPodUpdatesRequest{Mode: configv1.Mode_MODE_SNAPSHOT}, grpc.WaitForReady(true))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the pods from configmux: %w", err)
	}
	for {
		m, err := watch.Recv()
		if err != nil {
			return nil, nil, fmt.Errorf("reading the pods from configmux: %w", err)
		}
		if m.GetFrame().GetKind() != streamv1.Kind_KIND_SNAPSHOT {
			continue
		}
		pods = make([]*v1.Pod, len(m.GetSet().GetPods()))
		for i, update := range m.GetSet().GetPods() {
			pods[i] = &v1.Pod{}
			if err := pods[i].Unmarshal(update.GetPod()); err != nil {
				return nil, nil, fmt.Errorf("reading a pod that configmux sent: %w: run the same version of both", err)
			}
		}
		for _, source := range m.GetSet().GetSources() {
			if !source.GetReady() {
				silent = append(silent, source.GetName())
			}
		}
		return pods, silent, nil
	}
}

// board holds the last known state of the pods in syncloop.
type board struct {
	mu   sync.Mutex
	pods map[types.UID]*v1.Pod
	// changed is closed on a change.
	changed chan struct{}
}

func (b *board) put(pod *v1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods[pod.UID] = pod
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *board) get(uid types.UID) (*v1.Pod, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pods[uid], b.changed
}

// follow updates the board until ctx ends, also across restarts of syncloop.
func follow(ctx context.Context, cfg Config, states *board) {
	// It ends with its context, which is no failure.
	_ = stream.Follow(ctx, stream.FollowConfig[*enginev1.Pod]{
		Source: podSource(cfg.SyncLoop), Clock: cfg.Clock, Name: stream.NamePods,
		Handle: func(c stream.Change[*enginev1.Pod]) {
			pod := &v1.Pod{}
			if c.New != nil && pod.Unmarshal(c.New.GetPod()) == nil {
				states.put(pod)
			}
		},
	})
}

// podSource returns syncloop's stream of pods.
func podSource(conn grpc.ClientConnInterface) stream.Source[*enginev1.Pod] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[*enginev1.Pod], error) {
		watch, err := enginev1.NewEngineServiceClient(conn).
			WatchPods(ctx, &enginev1.WatchPodsRequest{ResumeToken: token}, grpc.WaitForReady(true))
		if err != nil {
			return nil, fmt.Errorf("watching syncloop's pods: %w", err)
		}
		return func() (*streamv1.Frame, *enginev1.Pod, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetPod(), err
		}, nil
	})
}

// await waits for one pod.
func await(ctx context.Context, cfg Config, states *board, pod *v1.Pod) Result {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	pauses := wait.Backoff{Duration: firstPause, Factor: 2, Steps: tries}
	result := Result{Pod: name, State: string(v1.PodPending)}
	for try := 1; try <= tries; try++ {
		pause := cfg.Clock.NewTimer(pauses.Step())
		for again := false; !again; {
			now, changed := states.get(pod.UID)
			var done bool
			if result.State, done, result.Err = judge(now); done {
				pause.Stop()
				return result
			}
			select {
			case <-changed:
			case <-pause.C():
				again = true
			case <-ctx.Done():
				pause.Stop()
				return result
			}
		}
		if try < tries {
			// An error of the progress output does not matter, because the result is returned.
			_, _ = fmt.Fprintf(cfg.Progress, "pod %s does not run yet: %v (try %d of %d)\n", name, result.Err, try, tries)
		}
	}
	return result
}

// judge returns the phase of a pod, whether that is final, and why the pod does not run.
func judge(pod *v1.Pod) (state string, done bool, err error) {
	if pod == nil {
		return string(v1.PodPending), false, fmt.Errorf("syncloop does not have it yet")
	}
	state = string(cmp.Or(pod.Status.Phase, v1.PodPending))
	switch pod.Status.Phase {
	case v1.PodSucceeded:
		return state, true, nil
	case v1.PodFailed:
		return state, true, fmt.Errorf(
			"%s",
			cmp.Or(join(pod.Status.Reason, pod.Status.Message), failedContainers(pod), "it has failed"),
		)
	case v1.PodRunning, v1.PodPending, v1.PodUnknown:
	}
	if why := cmp.Or(join(pod.Status.Reason, pod.Status.Message), waitingContainers(pod)); why != "" {
		return state, false, fmt.Errorf("%s", why)
	}
	return state, true, nil
}

// waitingContainers names the containers that should run and do not, with the reasons; empty if there are none.
func waitingContainers(pod *v1.Pod) string {
	var all []string
	for i := range pod.Spec.Containers {
		name := pod.Spec.Containers[i].Name
		at := slices.IndexFunc(pod.Status.ContainerStatuses, func(s v1.ContainerStatus) bool { return s.Name == name })
		if at < 0 {
			all = append(all, name+" has not been created")
			continue
		}
		switch state := pod.Status.ContainerStatuses[at].State; {
		case state.Running != nil:
		case state.Terminated != nil && state.Terminated.ExitCode == 0:
		case state.Terminated != nil:
			all = append(all, fmt.Sprintf("%s ended with the exit code %d", name, state.Terminated.ExitCode))
		case state.Waiting != nil:
			all = append(all, fmt.Sprintf("%s waits: %s", name, join(state.Waiting.Reason, state.Waiting.Message)))
		default:
			all = append(all, name+" waits")
		}
	}
	return strings.Join(all, "; ")
}

// failedContainers names the failed containers with their exit codes.
func failedContainers(pod *v1.Pod) string {
	var all []string
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if t := s.State.Terminated; t != nil && t.ExitCode != 0 {
			all = append(all, fmt.Sprintf("%s ended with the exit code %d", s.Name, t.ExitCode))
		}
	}
	return strings.Join(all, "; ")
}

// join joins a reason and its message.
func join(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}
