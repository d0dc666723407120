// Package containergc removes the containers and sandboxes that the runtime still has and nobody needs: those that [Of]
// finds. Workers put them in as containers end, so that a container that keeps ending does not fill the disk, and every
// minute all pods are looked at. What is left of pods that are gone as a whole is no matter of this package: their
// workers remove it, and the files with it.
//
// Removing is work of the disk that nobody waits for, so it makes way for what somebody does wait for: one thing is
// removed at a time, and while sandboxes are being made it is put off, for some seconds each. A removal that hangs is
// left to itself after two seconds, and delays no other; nor does it its own pod, whose worker does not wait.
//
// The kubelet's defaults hold: one ended container is kept for each of a pod's, of whatever age, and there is no limit
// on how many that are on the node. As in the kubelet none is kept of a pod that was evicted, and on a node that is
// short of disk none of a pod that ran to its end.
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
	// period is how often all pods are looked at, as in the kubelet.
	period = time.Minute
	// keep is how many ended containers of a name are kept when all are looked at, as in the kubelet.
	keep = 1
	// patience is how long a removal has the place of the one that is under way: some twenty times what it takes.
	patience = 2 * time.Second
	// maxHanging bounds how many removals hang beside the one that is under way.
	maxHanging = 8
	// wayPeriod is how often it is looked whether sandboxes are being made, and maxWays how often at most for one removal:
	// a node on which there is always one must not fill up either.
	wayPeriod = 250 * time.Millisecond
	maxWays   = 20
)

// Config is what a Collector needs.
type Config struct {
	// Queue has what others want removed, and takes what is found. Required.
	Queue *Queue
	// Observed lists what pleg has observed of all pods. With false not all are known yet, and the look is put off.
	Observed func() ([]*lifecyclev1.PodStatus, bool)
	// Disposable tells whether all ended containers of a pod are of no use, because it has ended for good and its last
	// status is kept elsewhere. With pressed the node is short of disk, and they need only not be needed. It may write to
	// the disk. Nil is for never.
	Disposable func(uid types.UID, pressed bool) bool
	// Remove removes one thing; to remove what is gone is no error.
	Remove func(ctx context.Context, item Item) error
	// Busy tells whether sandboxes are being made.
	Busy   func() bool
	Clock  clock.WithTicker
	Logger *slog.Logger
	// Metrics counts; nil counts nothing.
	Metrics *Metrics
	// Events is told when something cannot be removed. Required.
	Events Events
}

// Events is told what is wrong with the node; *podevents.Recorder keeps it.
type Events interface {
	NodeWarning(ctx context.Context, reason, message string)
}

// reasonFailed is the reason of the event, the kubelet's.
const reasonFailed = "ContainerGCFailed"

// Collector removes garbage. Make it with New.
type Collector struct {
	cfg     Config
	hanging chan struct{}
	removed sync.WaitGroup

	mu sync.Mutex
	// failed has why what could not be removed could not, by ID, as it was told.
	failed map[string]string
}

// New makes a Collector. It removes nothing before Run.
func New(cfg Config) *Collector {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Collector{cfg: cfg, hanging: make(chan struct{}, maxHanging+1), failed: map[string]string{}}
}

// Run removes until ctx ends, and returns its error then, when no call is under way any more.
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

// Look puts in what is not needed of all pods: of those that were evicted all ended containers, and of others all but
// the newest of each name. Run does it every minute.
func (c *Collector) Look(ctx context.Context) { c.look(ctx, false) }

// Reclaim is Look for a node that is short of disk: the ended containers of pods that ran to their end go, too, where
// they are not needed.
func (c *Collector) Reclaim(ctx context.Context) { c.look(ctx, true) }

func (c *Collector) look(ctx context.Context, pressed bool) {
	pods, known := c.cfg.Observed()
	if !known {
		return
	}
	there := map[string]bool{}
	for _, pod := range pods {
		items := Of(pod, keep)
		if c.cfg.Disposable != nil && hasEnded(pod) && c.cfg.Disposable(types.UID(pod.GetUid()), pressed) {
			items = AllOf(pod)
		}
		for _, item := range items {
			there[item.id()] = true
		}
		c.cfg.Queue.Put(ctx, items)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.failed {
		if !there[id] {
			delete(c.failed, id)
		}
	}
}

// turn removes one thing, and returns when it is done or has had its time. It fails only with the end of ctx.
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
	return c.wait(ctx, done, patience)
}

// wait returns when something is done, or a time has passed; with an error when ctx ends before.
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

// ended notes what a removal came to. An error is told when it is new; the next look, or the pod's worker, puts the
// thing in again. The first of which there are none others is an event; there is no more of them until everything could
// be removed.
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
	if len(c.failed) == 0 {
		c.cfg.Events.NodeWarning(ctx, reasonFailed, item.what()+", which nobody needs, cannot be removed: "+err.Error())
	}
	if last, told := c.failed[item.id()]; !told || last != err.Error() {
		c.failed[item.id()] = err.Error()
		c.cfg.Logger.Warn("what nobody needs cannot be removed from the runtime; it is tried again",
			telemetry.KeyPod, item.Namespace+"/"+item.Name, telemetry.KeyPodUID, item.Pod, telemetry.KeyContainer, item.Container.GetName(),
			telemetry.KeyContainerID, item.Container.GetId(), telemetry.KeySandboxID, item.Sandbox, telemetry.KeyError, err)
	}
}
