package allocator

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// ReconcilerConfig configures a Reconciler. All fields are required, except as noted.
type ReconcilerConfig struct {
	Allocator *Allocator
	// Pods returns the pods that hold resources of the node. It fails while they are unknown.
	Pods func() ([]*v1.Pod, error)
	// Observed returns all pods in the runtime; known is false while they are unknown.
	Observed func() (observed []*lifecyclev1.PodStatus, known bool)
	// Update changes the resources of a container that was observed to run. It fails if the container has ended.
	Update func(ctx context.Context, id string, resources *runtimeapi.ContainerResources) error
	// Period is cpuManagerReconcilePeriod.
	Period time.Duration
	// Clock is the clock.
	Clock clock.WithTicker
	// Logger logs problems; slog.Default if nil.
	Logger *slog.Logger
}

// Reconciler moves running containers to the CPUs that they may use, as these change when other containers get CPUs for
// themselves and give them back, and to the NUMA nodes of their memory. Create it with NewReconciler.
type Reconciler struct {
	cfg ReconcilerConfig
	// given is what this process has given to running containers, by ID. Only Run uses it.
	given map[string]placement
}

// placement has the CPUs and the NUMA nodes of a container as lists of the kernel's; empty ones are unknown or all.
type placement struct {
	cpus, nodes string
	// failed is true after an update that has failed.
	failed bool
}

// NewReconciler returns a reconciler.
func NewReconciler(cfg ReconcilerConfig) *Reconciler {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	return &Reconciler{cfg: cfg, given: map[string]placement{}}
}

// Run reconciles every period until ctx ends, whose error it returns. With the policy none of both managers it only
// waits.
func (r *Reconciler) Run(ctx context.Context) error {
	if r.cfg.Allocator.cpus == nil && r.cfg.Allocator.memory == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	ticker := r.cfg.Clock.NewTicker(r.cfg.Period)
	defer ticker.Stop()
	for {
		r.once(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// once updates the containers whose CPUs or NUMA nodes have changed since their last update. A container whose update
// fails is updated again the next time, and a second failure is logged as a warning.
func (r *Reconciler) once(ctx context.Context) {
	pods, err := r.cfg.Pods()
	observed, known := r.cfg.Observed()
	if err != nil || !known {
		return // it is not known yet what runs
	}
	active := make(map[types.UID]*v1.Pod, len(pods))
	for _, pod := range pods {
		active[pod.UID] = pod
	}
	next := make(map[string]placement, len(r.given))
	for _, status := range observed {
		pod := active[types.UID(status.GetUid())]
		if pod == nil {
			continue
		}
		for _, c := range status.GetContainers() {
			spec := find(pod, c.GetName())
			if spec == nil || c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING {
				continue
			}
			if given := r.reconcile(ctx, pod, spec, c.GetId()); given != (placement{}) {
				next[c.GetId()] = given
			}
		}
	}
	r.given = next
}

// find returns a container of a pod by its name; nil if there is none.
func find(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// reconcile gives a running container its CPUs and its memory, and returns those that it has then; empty if they are
// unknown.
func (r *Reconciler) reconcile(ctx context.Context, pod *v1.Pod, c *v1.Container, id string) placement {
	about := []any{
		telemetry.KeyPod, pod.Namespace + "/" + pod.Name, telemetry.KeyContainer, c.Name, telemetry.KeyContainerID, id,
	}
	set, _, err := r.cfg.Allocator.cpusOf(pod, c)
	if err != nil {
		r.cfg.Logger.Warn("a running container shares its CPUs, because none can be allocated to it",
			append(about, telemetry.KeyError, err)...)
	}
	blocks, err := r.cfg.Allocator.memoryOf(pod, c)
	if err != nil {
		r.cfg.Logger.Warn("a running container has memory of any NUMA node, because none can be allocated to it",
			append(about, telemetry.KeyError, err)...)
	}
	before, next := r.given[id], placement{cpus: set.String(), nodes: listOf(blocks)}
	if next == (placement{}) || next == before {
		return before
	}
	about = append(about, keyCPUs, next.cpus, "numa_nodes", next.nodes)
	resources := &runtimeapi.ContainerResources{
		Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: next.cpus, CpusetMems: next.nodes},
	}
	if err := r.cfg.Update(ctx, id, resources); err != nil {
		level := slog.LevelDebug // the container may have ended, which is observed before the next turn
		if before.failed && ctx.Err() == nil {
			level = slog.LevelWarn
		}
		r.cfg.Logger.Log(ctx, level, "cannot change the CPUs and NUMA nodes of a container; retrying",
			append(about, telemetry.KeyError, err)...)
		return placement{failed: true}
	}
	r.cfg.Logger.Debug("changed the CPUs and NUMA nodes of a container", about...)
	return next
}
