package claims

import (
	"context"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/rounds"
)

const (
	// firstAnswer is how long a caller waits for the first answer of the API server, and slowAnswer how long it waits for
	// an unknown object while no request for it has failed: the limit of requests makes those of many pods wait.
	firstAnswer, slowAnswer = time.Second, 10 * time.Second
	// requestTimeout bounds each request except watches.
	requestTimeout = 15 * time.Second
	// workers is how many requests for objects run at once.
	workers = 4
	// Refresh is the maximum age of the known state of a claim or volume. A kubelet requests them in each sync of a pod.
	Refresh = time.Minute
	// recheckPeriod is how often the ages are compared with Refresh, and recheckMax how many objects are then requested
	// at most, so that those of many pods do not delay the config maps and tokens of others.
	recheckPeriod, recheckMax = 5 * time.Second, 50
	// pollMin is the first pause between two requests for an object that a pod waits for. It doubles up to pollMax.
	pollMin, pollMax = 250 * time.Millisecond, 5 * time.Second
	// pollShare is the least pause, for each object that is waited for, so that all of them together are 25 requests per
	// second at most: half of the client's default limit.
	pollShare = 40 * time.Millisecond
)

// Config configures a Cluster. All fields except Shared are required.
type Config struct {
	// Core is a client of core/v1, Storage one of storage/v1, with the rights of the node.
	Core, Storage rest.Interface
	// Shared has the objects of a configmux of a site; nil if all come from the API server.
	Shared Shared
	// NodeName is the name of this node.
	NodeName string
	// Changed is called for each pod that should try again, or whose volumes may have changed. It must not block.
	Changed func(uid types.UID)
	// Clock is the time.
	Clock clock.WithTicker
}

// Cluster is the Source of a node with an API server. It caches an object while a pod depends on it, secrets excepted.
// While the API server is away, cached objects stay. Use NewCluster to create one.
type Cluster struct {
	cfg Config

	mu      sync.Mutex
	drivers drivers
	// queue has the keys to request; nil before Run.
	queue workqueue.TypedDelayingInterface[key]
	pods  map[types.UID]use
	held  map[key]*held
	// waiting is how many held objects are waited for.
	waiting int
}

// held is the known state of an object.
type held struct {
	// object is nil if the object does not exist or is unknown, and always for a secret. known is true once the API server
	// has answered, and version the resource version of its last answer.
	object  runtime.Object
	known   bool
	version string
	// err is the error of the last request; nil if it has succeeded.
	err error
	// requestedAt is the time of the last request, and confirmedAt that of the last one that was answered.
	requestedAt, confirmedAt time.Time
	// answered is closed at the first answer or failure since the object is held, or since a new pod uses it. late is true
	// if a caller has got no object because nothing was known.
	answered chan struct{}
	late     bool
	// waiters are the pods that received an error because of the object, and polls counts the requests since.
	waiters map[types.UID]bool
	polls   int
}

// NewCluster returns a Source that requests nothing until Run.
func NewCluster(cfg Config) *Cluster {
	return &Cluster{cfg: cfg, drivers: newDrivers(), pods: map[types.UID]use{}, held: map[key]*held{}}
}

// Run requests objects until ctx ends, and returns the error of ctx when all requests have ended.
func (c *Cluster) Run(ctx context.Context) error {
	queue := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[key]{Clock: c.cfg.Clock})
	c.mu.Lock()
	c.queue = queue
	for k := range c.held {
		queue.Add(k)
	}
	c.mu.Unlock()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.followDrivers(ctx) })
	group.Go(func() error {
		return rounds.Run(ctx, rounds.Config[key]{
			Queue: queue, Workers: workers, Settle: c.settle, Recheck: c.recheck, Period: recheckPeriod, Clock: c.cfg.Clock,
		})
	})
	return group.Wait()
}

// Use implements Source.
func (c *Cluster) Use(pod *v1.Pod) {
	u := useOf(pod, c.cfg.NodeName)
	u.since = c.cfg.Clock.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.pods[pod.UID]
	switch {
	case u.empty() && !known, known && before.equal(u):
		return
	case u.empty():
		delete(c.pods, pod.UID)
	default:
		if known {
			u.since = before.since
		}
		c.pods[pod.UID] = u
		c.drivers.start()
	}
	for _, k := range c.reach(u) {
		switch h := c.held[k]; {
		case h == nil && k.kind == claimKind:
			c.hold(k)
		case h != nil && !known: // a new pod gets the current object
			if isClosed(h.answered) {
				h.answered = make(chan struct{})
			}
			c.enqueue(k)
		}
	}
	c.dropUnused()
}

// Forget implements Source.
func (c *Cluster) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.pods[uid]; !known {
		return
	}
	delete(c.pods, uid)
	c.dropUnused()
}

// hold starts caching an object. The caller holds mu.
func (c *Cluster) hold(k key) *held {
	h := newHeld()
	c.held[k] = h
	c.enqueue(k)
	return h
}

func newHeld() *held { return &held{answered: make(chan struct{}), waiters: map[types.UID]bool{}} }

// dropUnused drops the objects that no pod depends on any more, and the pods that wait for an object and do not depend
// on it any more. The caller holds mu.
func (c *Cluster) dropUnused() {
	used := map[key][]types.UID{}
	for uid, u := range c.pods {
		for _, k := range c.reach(u) {
			used[k] = append(used[k], uid)
		}
	}
	for k, h := range c.held {
		for uid := range h.waiters {
			if !slices.Contains(used[k], uid) {
				c.unwait(h, uid)
			}
		}
		if len(used[k]) == 0 {
			delete(c.held, k)
		}
	}
}

// reach returns every object that a pod depends on, as far as it is known. The caller holds mu.
func (c *Cluster) reach(u use) []key { return reach(u, c.cfg.NodeName, c.object) }

// object returns the cached object of a key; nil if there is none. The caller holds mu.
func (c *Cluster) object(k key) runtime.Object {
	if h := c.held[k]; h != nil {
		return h.object
	}
	return nil
}

// usersOf returns the pods that depend on an object. The caller holds mu.
func (c *Cluster) usersOf(k key) []types.UID {
	var users []types.UID
	for uid := range c.pods {
		if c.uses(uid, k) {
			users = append(users, uid)
		}
	}
	return users
}

// uses reports whether a pod depends on an object. The caller holds mu.
func (c *Cluster) uses(uid types.UID, k key) bool { return slices.Contains(c.reach(c.pods[uid]), k) }

// enqueue requests an object soon. The caller holds mu.
func (c *Cluster) enqueue(k key) {
	if c.queue != nil {
		c.queue.Add(k)
	}
}

// recheck requests the claims and volumes whose state is old. Attachments and secrets are of interest only while a pod
// waits for them.
func (c *Cluster) recheck() {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, n := c.cfg.Clock.Now().Add(-Refresh), 0
	for k, h := range c.held {
		if n < recheckMax && h.requestedAt.Before(old) && (k.kind == claimKind || k.kind == volumeKind) {
			c.queue.Add(k)
			n++
		}
	}
}

// wait adds pods that wait for an object to change. The caller holds mu.
func (c *Cluster) wait(k key, h *held, pods ...types.UID) {
	for _, uid := range pods {
		if !c.uses(uid, k) {
			continue
		}
		if len(h.waiters) == 0 {
			h.polls = 0
			c.waiting++
			c.pollLater(k, h)
		}
		h.waiters[uid] = true
	}
}

// unwait removes a pod that does not wait for an object any more. The caller holds mu.
func (c *Cluster) unwait(h *held, uid types.UID) {
	if h.waiters[uid] {
		if delete(h.waiters, uid); len(h.waiters) == 0 {
			c.waiting--
		}
	}
}

// pollLater requests an object after a pause. The caller holds mu.
func (c *Cluster) pollLater(k key, h *held) {
	if c.queue != nil {
		c.queue.AddAfter(k, pause(h.polls, c.waiting))
	}
}

// pause returns the pause before the next request for an object, after a number of requests, while this many objects
// are waited for.
func pause(polls, waiting int) time.Duration {
	p := pollMin
	for range polls {
		if p *= 2; p >= pollMax {
			p = pollMax
			break
		}
	}
	return max(p, time.Duration(waiting)*pollShare)
}
