// Package containergc removes the unneeded containers and sandboxes that [Of] finds. Workers queue them as containers
// end, so that a container that keeps failing does not fill the disk. In addition, all pods are checked every minute.
// Pods that no longer exist are not handled here: their workers remove their containers, sandboxes and files.
//
// Removals have low priority, because they use the disk and nobody waits for them: one item is removed at a time, and
// each removal is delayed by up to some seconds while sandboxes are being created. A removal that hangs frees its place
// after two seconds, so that it delays neither the others nor the worker of its pod.
//
// The kubelet's defaults apply: one ended container is kept for each container of a pod, whatever its age, and the
// number of ended containers on the node is not limited. As in the kubelet, none is kept for an evicted pod, and on a
// node that is short of disk none for a pod that has terminated.
package containergc

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// period is the time between two checks of all pods. It is the kubelet's.
	period = time.Minute
	// keep is the number of ended containers of each name that a check of all pods keeps. It is the kubelet's.
	keep = 1
	// stopTimeout is the time after which the next removal starts even if the current one has not ended. A removal takes
	// about a twentieth of it.
	stopTimeout = 2 * time.Second
	// maxHanging is the largest number of hanging removals besides the current one.
	maxHanging = 8
	// wayPeriod is the time between two checks whether sandboxes are being created. maxWays is the largest number of
	// checks for one removal: a node that always creates a sandbox must not fill up.
	wayPeriod = 250 * time.Millisecond
	maxWays   = 20
)

// Config holds the dependencies of a Collector.
type Config struct {
	// Queue holds the items to remove. The Collector adds those that it finds itself. Required.
	Queue *Queue
	// Observed returns pleg's observations of all pods. If it returns false, not all pods are known yet and the check is
	// skipped.
	Observed func() ([]*lifecyclev1.PodStatus, bool)
	// Disposable reports whether all ended containers of a pod can be removed: those of an evicted pod and, if pressed is
	// true because the node is short of disk, those of any terminated pod. Their last status is then stored elsewhere, so
	// Disposable may write to the disk. Nil stands for a function that returns false.
	Disposable func(uid types.UID, pressed bool) bool
	// Remove removes one item. It succeeds if the item does not exist.
	Remove func(ctx context.Context, item Item) error
	// Busy reports whether sandboxes are being created.
	Busy   func() bool
	Clock  clock.WithTicker
	Logger *slog.Logger
	// Metrics counts removals; nil counts nothing.
	Metrics *Metrics
	// Events records failed removals. Required.
	Events Events
}

// Events records warnings about the node; *podevents.Recorder implements it.
type Events interface {
	NodeWarning(ctx context.Context, reason, message string)
}

// reasonFailed is the reason of the event. It is the kubelet's.
const reasonFailed = "ContainerGCFailed"

// Collector removes unneeded containers and sandboxes. Create it with New.
type Collector struct {
	cfg     Config
	hanging chan struct{}
	removed sync.WaitGroup

	mu sync.Mutex
	// failed holds the failure of each item that could not be removed, by ID.
	failed map[string]failure
}

// failure is the last logged error of an item, and the UID of the item's pod.
type failure struct{ pod, message string }

// New returns a Collector. It removes nothing before Run.
func New(cfg Config) *Collector {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Collector{cfg: cfg, hanging: make(chan struct{}, maxHanging+1), failed: map[string]failure{}}
}

// Run removes items until ctx ends. It returns the error of ctx after all calls have ended.
func (c *Collector) Run(ctx context.Context) error {
	defer c.removed.Wait()
	ticker := c.cfg.Clock.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
			c.Look(ctx)
		case <-c.cfg.Queue.more:
		}
		for item, ok := c.cfg.Queue.next(); ok; item, ok = c.cfg.Queue.next() {
			if err := c.turn(ctx, item); err != nil {
				return err
			}
		}
	}
}

// Look queues the unneeded items of all pods: all ended containers of evicted pods, and all but the newest of each name
// of other pods. Run calls it every minute.
func (c *Collector) Look(ctx context.Context) { c.check(ctx, false) }

// Reclaim is Look for a node that is short of disk: it also queues the ended containers of terminated pods that are
// disposable.
func (c *Collector) Reclaim(ctx context.Context) { c.check(ctx, true) }

func (c *Collector) check(ctx context.Context, pressed bool) {
	pods, known := c.cfg.Observed()
	if !known {
		return
	}
	present := map[string]bool{}
	for _, pod := range pods {
		items := Of(pod, keep)
		if c.cfg.Disposable != nil && hasEnded(pod) && c.cfg.Disposable(types.UID(pod.GetUid()), pressed) {
			items = AllOf(pod)
		}
		for _, item := range items {
			present[item.id()] = true
		}
		c.cfg.Queue.Put(ctx, items)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.failed {
		if !present[id] {
			delete(c.failed, id)
		}
	}
}

// turn removes one item and returns when it is removed or its time is over. Its only error is that of ctx.
func (c *Collector) turn(ctx context.Context, item queued) error {
	for ways := 0; ways < maxWays && c.cfg.Busy(); ways++ {
		if err := c.wait(ctx, nil, wayPeriod); err != nil {
			return err
		}
	}
	select {
	case c.hanging <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan struct{})
	c.removed.Go(func() {
		defer close(done)
		c.ended(ctx, item, c.cfg.Remove(trace.ContextWithSpanContext(ctx, item.span), item.Item))
		<-c.hanging
	})
	return c.wait(ctx, done, stopTimeout)
}

// wait returns when done is closed or a time has passed. Its only error is that of ctx.
func (c *Collector) wait(ctx context.Context, done <-chan struct{}, atMost time.Duration) error {
	timer := c.cfg.Clock.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
	case <-timer.C():
	}
	return nil
}

// ended records the outcome of a removal. It logs an error that differs from the last one; the next check or the pod's
// worker queues the item again. If no other item of the pod is failing, it also records an event.
func (c *Collector) ended(ctx context.Context, item queued, err error) {
	defer c.cfg.Queue.done(item.Item)
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		delete(c.failed, item.id())
		c.cfg.Metrics.done(item.Item)
		return
	}
	c.cfg.Metrics.failed()
	if !c.failing(item.Pod) {
		message := item.description() + ", which is not needed, cannot be removed: " + err.Error()
		c.cfg.Events.NodeWarning(ctx, reasonFailed, message)
	}
	if last := c.failed[item.id()]; last.message != err.Error() {
		c.failed[item.id()] = failure{pod: item.Pod, message: err.Error()}
		c.cfg.Logger.Warn("cannot remove an unneeded container or sandbox from the runtime; retrying",
			telemetry.KeyPod, item.Namespace+"/"+item.Name, telemetry.KeyPodUID, item.Pod, telemetry.KeyContainer, item.Container.GetName(),
			telemetry.KeyContainerID, item.Container.GetId(), telemetry.KeySandboxID, item.Sandbox, telemetry.KeyError, err)
	}
}

// failing reports whether an item of a pod could not be removed. The caller holds mu.
func (c *Collector) failing(pod string) bool {
	for _, f := range c.failed {
		if f.pod == pod {
			return true
		}
	}
	return false
}
