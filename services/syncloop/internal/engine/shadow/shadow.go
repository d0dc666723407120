// Package shadow decides what syncloop would do on a living node, without doing it, and compares that with what the
// syncloop that runs does. It answers what another version or another configuration would do.
//
// The loop, the workers, the decisions and the statuses are those of the product. Only the end of the chain is another:
// the workers act through [planner], which notes each action. So the shadow makes no call of the runtime, mounts
// nothing, and publishes nothing. It sees the results of the actions of the syncloop that runs, as pleg observes them,
// and decides on from there.
//
//	configmux ──► loop ──► workers ──► planner: what the shadow would do ──┐
//	pleg ── late ──┘                                                       ├──► judge ──► differences
//	syncloop that runs: its pods with their statuses ──────────────────────┘
//
// What the shadow cannot know it takes from the syncloop that runs: the results of probes, which it must not call, and
// evictions whose causes are the use of memory or disks, a call, or the shutdown of the machine.
package shadow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/nodefeatures"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

const (
	// plegLag is the delay of pleg's events.
	plegLag = 2 * time.Second
)

// Config holds the streams to follow and the settings to decide by.
type Config struct {
	// Desired, Events and Node are the streams of the node's configmux, pleg and nodestatus. Pods and PodEvents are those
	// of the syncloop that runs.
	Desired   stream.Source[*loop.Desired]
	Events    stream.Source[*lifecyclev1.Event]
	Node      stream.Source[*nodev1.Node]
	Pods      stream.Source[*enginev1.Pod]
	PodEvents stream.Source[*enginev1.PodEvent]
	// Health is that of pleg: (*clients.PLEG).Health.
	Health func(ctx context.Context) (reasons []string, network string, err error)

	// NodeName is the name of the node.
	NodeName string
	// Dir is an empty directory for what the shadow writes.
	Dir string
	// The others are settings of loop.Config and decide.Facts.
	Machine       admission.Machine
	Features      *nodefeatures.Features
	UnsafeSysctls []string
	Privileges    privilege.Allowed
	Resizing      resize.Node
	Resync        time.Duration
	BackoffMax    time.Duration

	// Wait is how long a difference must last.
	Wait time.Duration
	// MaxPods and PodsPerCore replace those of the Node, unless MaxPods is 0.
	MaxPods, PodsPerCore int64
	// Lag is the delay of pleg's events; 0 for that of a living node.
	Lag time.Duration
	// Paused reports whether the syncloop that runs is away, besides the state of its stream; nil is never.
	Paused func() bool
	// Started is called when both sides are known, and Compared, which may be nil, after each comparison. Report is called
	// with each difference, by the same goroutine.
	Started, Compared func()
	Report            func(Difference)
	Clock             clock.WithTicker
	Logger            *slog.Logger
}

// Run follows the node until ctx ends, and returns what was compared.
func Run(ctx context.Context, cfg Config) (Summary, error) {
	cfg = withDefaults(cfg)
	records := resizes.InMemory()
	evictions := evictionbook.Open(evictionbook.Config{
		Path: filepath.Join(cfg.Dir, "evictions.json"), Node: cfg.NodeName, Clock: cfg.Clock, Logger: cfg.Logger,
	})
	results := newAnswers()
	intended := newPlans()
	store := podstore.New(podstore.Config{
		API: unreported{}, Probes: results, Resizes: records, Clock: cfg.Clock, Tracer: telemetry.Off(), Logger: cfg.Logger,
	})
	j := newJudge(cfg, intended, results, store)
	running, stop := context.WithCancel(ctx)
	workers := podworkers.NewPool(running, podworkers.Config{
		Runtime: &planner{
			clock: cfg.Clock, backoffMax: cfg.BackoffMax, answers: results, resizes: records, plans: intended,
		},
		Observer: j, Statuses: store, Endings: gracebook.InMemory(noTime), Resizes: records,
		Clock: cfg.Clock, BootTime: noTime, Tracer: telemetry.Off(), Logger: cfg.Logger, Resync: cfg.Resync,
	})
	j.evict = func(uid types.UID, why podstore.Eviction) {
		_ = evict(evictions, store, workers, uid, why) // a pod that is gone meanwhile needs no eviction
	}
	l := loop.New(loop.Config{
		Desired: cfg.Desired, Pleg: plegOf{cfg.Health}, Probes: results, Workers: workers, Store: store,
		Events:    &late[*lifecyclev1.Event]{source: cfg.Events, by: cfg.Lag, clock: cfg.Clock, seen: j.observe},
		Evictions: evictions, Endings: gracebook.InMemory(noTime), Resizes: records, Resizing: cfg.Resizing,
		PodFromObserved: executor.PodFromObserved, Clock: cfg.Clock, Tracer: telemetry.Off(), Logger: cfg.Logger,
		Resync: cfg.Resync, Node: cfg.Node, Mirrors: noMirrors{}, Machine: cfg.Machine, Features: cfg.Features,
		UnsafeSysctls: cfg.UnsafeSysctls, Privileges: cfg.Privileges,
		Preempt: func(_ context.Context, uid types.UID, why podstore.Eviction) error {
			return evict(evictions, store, workers, uid, why)
		},
	})
	group, groupCtx := errgroup.WithContext(running)
	group.Go(func() error { return j.follow(groupCtx, cfg.Pods) })
	group.Go(func() error { return j.followEvents(groupCtx, cfg.PodEvents) })
	group.Go(func() error {
		if err := j.await(groupCtx, evictions); err != nil {
			return err
		}
		return l.Run(groupCtx)
	})
	group.Go(func() error { return j.run(groupCtx) })
	group.Go(func() error { return results.run(groupCtx) })
	err := group.Wait()
	stop()
	workers.Wait()
	store.Close()
	if ctx.Err() != nil {
		err = nil
	}
	return j.summary(), errors.Join(err, evictions.Close())
}

// withDefaults returns the configuration with what may be left out.
func withDefaults(cfg Config) Config {
	if cfg.Lag == 0 {
		cfg.Lag = plegLag
	}
	if cfg.Paused == nil {
		cfg.Paused = func() bool { return false }
	}
	if cfg.Compared == nil {
		cfg.Compared = func() {}
	}
	if cfg.MaxPods > 0 {
		cfg.Node = withPods(cfg.Node, cfg.MaxPods, cfg.PodsPerCore)
	}
	return cfg
}

func newJudge(cfg Config, intended *plans, results *answers, store *podstore.Store) *judge {
	return &judge{
		clock: cfg.Clock, logger: cfg.Logger, wait: cfg.Wait, plans: intended, answers: results, pods: store.List,
		report: cfg.Report, started: cfg.Started,
		compared: cfg.Compared, paused: cfg.Paused, synced: make(chan struct{}),
		running: map[types.UID]*side{}, ending: map[types.UID]bool{}, observed: map[types.UID]*lifecyclev1.PodStatus{},
		existing: map[types.UID]*existing{}, kills: map[types.UID]map[string]string{},
		seen: map[types.UID]map[string]int{}, told: map[types.UID]map[string]bool{},
		counted: map[types.UID]bool{}, followed: map[types.UID]bool{}, counts: map[Action]int{},
	}
}

// await waits until the pods of the syncloop that runs are known. It takes over those that ended before, and notes
// those that are being ended: the other has records of them, and the shadow has none.
func (j *judge) await(ctx context.Context, evictions *evictionbook.Book) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-j.synced:
	}
	ended := map[types.UID]podstore.Eviction{}
	j.mu.Lock()
	for uid, s := range j.running {
		status := &s.pod.Status
		if s.state == enginev1.WorkerState_WORKER_STATE_TERMINATING {
			j.ending[uid] = true
		}
		over := status.Phase == v1.PodFailed || status.Phase == v1.PodSucceeded
		if s.state == enginev1.WorkerState_WORKER_STATE_TERMINATED && over && !s.refused() {
			ended[uid] = podstore.Eviction{Reason: status.Reason, Message: status.Message, Last: status}
		}
	}
	j.mu.Unlock()
	evictions.PutAll(ended)
	return nil
}

// evict ends a pod of the shadow.
func evict(
	book *evictionbook.Book, store *podstore.Store, workers *podworkers.Pool, uid types.UID, why podstore.Eviction,
) error {
	book.Put(uid, why)
	if err := store.Evict(uid, why); err != nil {
		return err
	}
	workers.End(uid, podworkers.Cause{Kind: podworkers.CauseConfig}, podworkers.End{})
	return nil
}

// GetPodStatus implements podworkers.Observer with the observations of pleg's events. The shadow writes nothing that it
// would have to wait for.
func (j *judge) GetPodStatus(_ context.Context, uid types.UID, _ time.Duration) (*lifecyclev1.PodStatus, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if status := j.observed[uid]; status != nil {
		return status, nil
	}
	return &lifecyclev1.PodStatus{Uid: string(uid)}, nil
}

// noTime is a clock that stands still. Every observation is newer than the shadow's last write, because it writes
// nothing.
func noTime() time.Duration { return 0 }

// plegOf is pleg for the loop. It requests no relist, which the role observe does not include.
type plegOf struct {
	health func(ctx context.Context) (reasons []string, network string, err error)
}

// Health implements loop.Pleg.
func (p plegOf) Health(ctx context.Context) (reasons []string, network string, err error) {
	return p.health(ctx)
}

// Relist implements loop.Pleg.
func (plegOf) Relist(context.Context) error { return nil }

// unreported reports no status to an API server.
type unreported struct{}

// Report implements podstore.API.
func (unreported) Report(podstatus.Report) {}

// Forget implements podstore.API.
func (unreported) Forget(types.UID) {}

// noMirrors shows no pod in an API server.
type noMirrors struct{}

// Want implements loop.Mirrors.
func (noMirrors) Want(*v1.Pod) {}

// Unwant implements loop.Mirrors.
func (noMirrors) Unwant(types.UID) {}

// Seen implements loop.Mirrors.
func (noMirrors) Seen(*v1.Pod) {}

// Gone implements loop.Mirrors.
func (noMirrors) Gone(types.UID) {}

// SetKnown implements loop.Mirrors.
func (noMirrors) SetKnown(bool, bool) {}

// SetNode implements loop.Mirrors.
func (noMirrors) SetNode(types.UID) {}

// Scratch makes the directory of a shadow, and returns the function that removes it.
func Scratch() (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp("", "syncloop-shadow-")
	if err != nil {
		return "", nil, fmt.Errorf("make a directory for the shadow: %w", err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}
