// Package nodeclaims provides the persistent volume claims of a node without an API server: each claim is a directory
// of the node or, if it names a storage class, a volume of package nodevolumes. The documents of claims come from
// configmux; persistentvolumes mounts the directories as local volumes.
//
//	STATE_DIR/claims/NAMESPACE/NAME           the content of a claim
//	STATE_DIR/claims/NAMESPACE/.UID.json      its record: which claim the content belongs to
//	STATE_DIR/claims/NAMESPACE/.removed-ID    the content of a deleted claim, on its way out
//
// A claim with a storage class has its record alone, from the beginning if its class binds at once. A directory is made
// when the first pod uses the claim, and stays when the pod goes. The UID of a claim identifies its content: a claim
// that was deleted and made again has another UID and starts empty. The claim of a generic ephemeral volume is that of
// its pod, and is deleted with it.
//
// One goroutine, that of Run, owns the records and the directories. The steps on disk are ordered so that a process
// that is killed at any point leaves a state from which the next one continues:
//
//	make:    write the record ──► limit its project ID ──► make the directory with this project ID
//	resize:  write the record ──► change the limit
//	delete:  mark the record (no pod may begin to use it) ──► no pod uses it ──► rename the directory away ──►
//	         remove the limit ──► remove the record (the name is free) ──► remove the renamed directory
//
// Where the file system has project quotas, the directory has a project ID of its own with the claim's size as its
// limit. An existing directory gets none, because its content would have to be counted file by file.
//
// In place of the renaming, nodevolumes is told that nobody needs the volume of a storage class any more.
package nodeclaims

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/nodevolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/projectquota"
)

// retryInterval is the interval of retries for a step on disk that has failed.
const retryInterval = 5 * time.Second

// closeTimeout bounds the wait for a removal when the process stops.
const closeTimeout = 2 * time.Second

// keyClaim is the name of a claim in the log.
const keyClaim = "claim"

// errEnded is returned while the process stops.
var errEnded = errors.New("syncloop is stopping: the next one continues")

// Documents provides the claims that configmux knows; *configobjects.Configmux implements it.
type Documents interface {
	// Claim returns a claim. apierrors.IsNotFound is true for its error only if it is certain that there is none.
	Claim(namespace, name string) (*v1.PersistentVolumeClaim, error)
	// Claims returns the claims that are known.
	Claims() []*v1.PersistentVolumeClaim
	// StorageClass returns a storage class.
	StorageClass(name string) (*storagev1.StorageClass, error)
	// Unread returns why the answer of Claim may still change without a change of the claim; empty if it may not.
	Unread() string
}

// Volumes provides the volumes of claims with a storage class; *nodevolumes.Volumes implements it.
type Volumes interface {
	// Provide returns the volume of a claim, and makes it if there is none. Its error says what the claim waits for.
	Provide(ctx context.Context, claim *v1.PersistentVolumeClaim) (nodevolumes.Volume, error)
	// Begin makes the volume of a claim in the background, unless there is one.
	Begin(claim *v1.PersistentVolumeClaim)
	// Want tells the size of a claim, to which its volume grows.
	Want(claim *v1.PersistentVolumeClaim)
	// Known returns what is known of the volume of a claim, without asking a driver.
	Known(claim types.UID) nodevolumes.Volume
	// Release gives up the volume of a deleted claim that no pod uses. It does not wait for a driver.
	Release(claim types.UID) error
}

// Config holds the parameters of Claims. All fields except Logger are required.
type Config struct {
	// Dir is the directory of the claims. It is created in an existing directory.
	Dir string
	// PodsDir is the directory of the pods' directories, by UID.
	PodsDir string
	// Volumes are the volumes of claims with a storage class.
	Volumes Volumes
	// Changed is called for each pod that may be able to use a claim now. It must not block.
	Changed func(uid types.UID)
	Clock   clock.WithTicker
	// Logger logs what is made and removed; slog.Default if nil.
	Logger *slog.Logger
}

// Claims provides the claims of the node. Its methods may be called from any goroutine.
type Claims struct {
	cfg  Config
	disk disk
	// requests are the calls for the owner.
	requests chan request
	// wake and sweep have capacity one, because one signal covers everything.
	wake, sweep chan struct{}
	// ended is closed when Run has ended.
	ended chan struct{}

	// documents is used by the owner only.
	documents Documents

	mu sync.Mutex
	// pods are the registered pods.
	pods map[types.UID]user
	// records are the claims with a directory. Only the owner changes the map, and the fields of a record.
	records map[key]*record
}

// user is a registered pod.
type user struct {
	// name is "namespace/name".
	name string
	// keys are the claims that its spec names.
	keys []key
}

// request is a call for the owner.
type request struct {
	pod    *v1.Pod
	volume *v1.Volume
	answer chan<- answer
}

type answer struct {
	claim *v1.PersistentVolumeClaim
	pv    *v1.PersistentVolume
	err   error
}

// New returns the claims of a node. Nothing happens before Run.
func New(cfg Config) *Claims {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return newClaims(cfg, folder{dir: cfg.Dir, quotas: projectquota.FileSystem{}, logger: cfg.Logger})
}

func newClaims(cfg Config, disk disk) *Claims {
	return &Claims{
		cfg: cfg, disk: disk, requests: make(chan request), wake: make(chan struct{}, 1), sweep: make(chan struct{}, 1),
		ended: make(chan struct{}), pods: map[types.UID]user{}, records: map[key]*record{},
	}
}

// Run serves calls, and makes and removes directories, until ctx ends. It returns the error of ctx. It is called once.
func (c *Claims) Run(ctx context.Context, documents Documents) error {
	defer close(c.ended)
	c.documents = documents
	defer c.startSweep(ctx)()
	loaded, retry := c.load(), c.cfg.Clock.NewTicker(retryInterval)
	defer retry.Stop()
	again := !loaded
	signal(c.wake)
	for {
		var tick <-chan time.Time
		if again {
			tick = retry.C()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r := <-c.requests:
			if !loaded {
				loaded = c.load()
			}
			r.answer <- c.serve(r, loaded)
			continue
		case <-c.wake:
		case <-tick:
		}
		if !loaded {
			loaded = c.load()
		}
		again = !loaded || !c.settle()
	}
}

// load reads the records into memory, and reports whether that has succeeded.
func (c *Claims) load() bool {
	all, err := c.disk.load()
	if err != nil {
		c.cfg.Logger.Error("the claims of this node cannot be read; it is tried again", "dir", c.cfg.Dir, telemetry.KeyError, err)
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, r := range all {
		r.users, r.unenforced = map[types.UID]bool{}, errNotChecked
		c.records[k] = r
	}
	signal(c.sweep)
	return true
}

// Use registers a pod with the claims that its spec names.
func (c *Claims) Use(pod *v1.Pod) {
	keys := claimsOf(pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[pod.UID] = user{name: pod.Namespace + "/" + pod.Name, keys: keys}
}

// Forget removes a pod of which nothing is left on the node. What it used may be removed then.
func (c *Claims) Forget(uid types.UID) {
	c.mu.Lock()
	keys := c.pods[uid].keys
	delete(c.pods, uid)
	for _, r := range c.records {
		delete(r.users, uid)
	}
	c.mu.Unlock()
	if len(keys) > 0 {
		c.tell(keys...)
		signal(c.wake)
	}
}

// Check looks at all claims again, because the documents may have changed. It does not block.
func (c *Claims) Check() { signal(c.wake) }

// Claim returns the claim of a volume of a pod and its persistent volume, and makes that if it is new. The pod must be
// registered. The pod is notified when a claim that it could not use may be usable.
func (c *Claims) Claim(
	ctx context.Context, pod *v1.Pod, volume *v1.Volume,
) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	answered := make(chan answer, 1)
	select {
	case c.requests <- request{pod: pod, volume: volume, answer: answered}:
	case <-c.ended:
		return nil, nil, errEnded
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	select {
	case a := <-answered:
		if a.err == nil && a.pv == nil {
			return c.provided(ctx, a.claim)
		}
		return a.claim, a.pv, a.err
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// Tell notifies the registered pods that name a claim, because its volume has changed or may be usable now.
func (c *Claims) Tell(namespace, name string) { c.tell(key{namespace, name}) }

// tell notifies the registered pods that name one of some claims.
func (c *Claims) tell(keys ...key) {
	var told []types.UID
	c.mu.Lock()
	for uid, pod := range c.pods {
		if slices.ContainsFunc(keys, func(k key) bool { return slices.Contains(pod.keys, k) }) {
			told = append(told, uid)
		}
	}
	c.mu.Unlock()
	for _, uid := range told {
		c.cfg.Changed(uid)
	}
}

// startSweep starts the removal of deleted content. The returned function waits for its end, but not longer than
// closeTimeout: the next process continues with a directory that takes long.
func (c *Claims) startSweep(ctx context.Context) (wait func()) {
	ended := make(chan struct{})
	go func() { // ends with ctx, or with the process
		defer close(ended)
		c.sweepUntil(ctx)
	}()
	return func() {
		timer := c.cfg.Clock.NewTimer(closeTimeout)
		defer timer.Stop()
		select {
		case <-ended:
		case <-timer.C():
		}
	}
}

// sweepUntil removes the content of deleted claims until ctx ends. A failure, for example because something is mounted
// there, is retried.
func (c *Claims) sweepUntil(ctx context.Context) {
	retry := c.cfg.Clock.NewTicker(retryInterval)
	defer retry.Stop()
	again := false
	for {
		var tick <-chan time.Time
		if again {
			tick = retry.C()
		}
		select {
		case <-ctx.Done():
			return
		case <-c.sweep:
		case <-tick:
		}
		err := c.disk.sweep(ctx)
		if again = err != nil; again && ctx.Err() == nil {
			c.cfg.Logger.Warn("the data of deleted claims cannot be removed; it is tried again", telemetry.KeyError, err)
		}
	}
}

// signal sends a signal that may already be pending.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
