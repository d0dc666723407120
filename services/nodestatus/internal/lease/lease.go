// Package lease renews the node's lease in the API server, which shows the control plane that the node is alive. It
// does not depend on the state of the node, which is in the conditions that package report sends. So neither an
// unreachable peer nor a hanging computation of the Node delays it.
//
// It detects two agents with the same node name: the lease is renewed by another holder between two own renewals.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
)

const (
	// renewals is the number of renewals within the duration of a lease, as in the kubelet.
	renewals = 4
	// jitter is the maximum relative extension of the interval, so that the nodes of a recovering API server do not all
	// renew at the same moment.
	jitter = 0.04
	// firstRetry and lastRetry are the kubelet's: the first delay after a failure, which doubles, and the longest.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 7 * time.Second
	// takenAfter is the number of consecutive renewals by another holder after which there are two agents with one name. A
	// single one occurs when a process has just been replaced.
	takenAfter = 2
	// healthName and healthTaken are the names in the health.
	healthName  = "lease"
	healthTaken = "nodename"
)

// RenewInterval returns the renewal interval for a lease duration.
func RenewInterval(duration time.Duration) time.Duration { return duration / renewals }

// Config holds the parameters of a Keeper.
type Config struct {
	// Client is the client for coordination/v1. It must have no rate limit, and a timeout below the renewal interval.
	Client rest.Interface
	// Name is the name of the node, the lease and its holder.
	Name string
	// Duration is the duration of the lease, nodeLeaseDurationSeconds. It is renewed four times within it.
	Duration time.Duration
	// Broken is called if consecutive renewals fail, because the connection may be dead.
	Broken func()
	// Taken is called if another agent renews the lease of this node; it may be nil.
	Taken func()
	// Health reports why the lease is not renewed.
	Health  *rpc.Health
	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics
	// Tracer creates a span "lease.renew" for each renewal, with its requests as children.
	Tracer trace.Tracer
}

// Keeper keeps the lease. Create it with New.
type Keeper struct {
	cfg Config

	mu    sync.Mutex
	owner types.UID
	// owned is signaled when there is an owner; its capacity is one.
	owned chan struct{}

	steps *watchdog.Steps

	// Only Run uses the following fields: the last written lease, nil if it must be read; the consecutive failures and the
	// last logged one; and the consecutive renewals by another holder.
	latest    *coordinationv1.Lease
	failures  int
	complaint string
	others    int
	taken     bool
}

// New returns a keeper, and reports in the health that the lease is not renewed yet.
func New(cfg Config) *Keeper {
	cfg.Health.Set(healthName, "the lease of the node has not been renewed yet")
	steps := watchdog.NewSteps(cfg.Clock, RenewInterval(cfg.Duration))
	return &Keeper{cfg: cfg, owned: make(chan struct{}, 1), steps: steps}
}

// Stands returns why the loop of renewals stands still; nil if it turns. A renewal that the API server does not answer
// has a deadline.
func (k *Keeper) Stands() error { return k.steps.Stands() }

// Registered sets the Node in the API server, which owns the lease; nil if it does not exist.
func (k *Keeper) Registered(node *v1.Node) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if node == nil {
		k.owner = ""
		return
	}
	if k.owner == node.UID {
		return
	}
	k.owner = node.UID
	select {
	case k.owned <- struct{}{}:
	default:
	}
}

func (k *Keeper) ownerUID() types.UID {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.owner
}

// Run renews the lease until ctx ends. It creates a missing lease when the API server has the Node.
func (k *Keeper) Run(ctx context.Context) {
	delay := firstRetry
	for ctx.Err() == nil {
		var wait time.Duration
		k.steps.Do(func() { wait = k.turn(ctx, &delay) })
		select {
		case <-ctx.Done():
		case <-k.owned:
		case <-k.cfg.Clock.After(wait):
		}
	}
}

// turn renews the lease once, and returns the time until the next turn. Delay is that after the next failure.
func (k *Keeper) turn(ctx context.Context, delay *time.Duration) (wait time.Duration) {
	wait = k.pause()
	err := k.renew(ctx)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errNoOwner):
		k.cfg.Health.Set(healthName, err.Error())
	case err != nil:
		wait = *delay
		*delay = min(2*(*delay), lastRetry)
		k.failed(err, wait)
	default:
		*delay = firstRetry
		k.renewed()
	}
	return wait
}

// pause returns the delay before the next renewal.
func (k *Keeper) pause() time.Duration {
	interval := RenewInterval(k.cfg.Duration)
	return interval + time.Duration(rand.Float64()*jitter*float64(interval)) //nolint:gosec // it only keeps nodes apart
}

// errNoOwner is the error for a missing lease that may not be created yet.
var errNoOwner = errors.New("there is no lease of the node until the API server has the Node")

// renew writes the lease once. After a failure, the next attempt reads the lease again.
func (k *Keeper) renew(ctx context.Context) (err error) {
	// A request that the API server defers repeatedly (429) also ends before the next one.
	ctx, cancel := context.WithTimeout(ctx, RenewInterval(k.cfg.Duration))
	defer cancel()
	ctx, span := telemetry.Start(ctx, k.cfg.Tracer, "lease.renew", telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	if k.latest == nil {
		if k.latest, err = k.find(ctx); err != nil {
			return err
		}
	}
	lease := k.renewal(k.latest)
	if lease.ResourceVersion == "" {
		if len(lease.OwnerReferences) == 0 {
			k.latest = nil
			return errNoOwner
		}
		k.latest, err = one(ctx, k.cfg.Client.Post().Namespace(v1.NamespaceNodeLease).Resource(resource).Body(lease))
		return err
	}
	k.latest, err = one(
		ctx,
		k.cfg.Client.Put().Namespace(v1.NamespaceNodeLease).Resource(resource).Name(k.cfg.Name).Body(lease),
	)
	if apierrors.IsConflict(err) {
		return k.contended(ctx, lease)
	}
	if err == nil {
		k.alone()
	}
	return err
}

// find returns the lease in the API server, or an empty one if there is none.
func (k *Keeper) find(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := k.get(ctx)
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{}, nil
	}
	return lease, err
}

// contended handles a lease that another holder has written since: it overwrites the present one.
func (k *Keeper) contended(ctx context.Context, tried *coordinationv1.Lease) error {
	stored, err := k.find(ctx)
	if err != nil {
		return err
	}
	// An own write whose response was lost has our time.
	if stored.ResourceVersion != "" && !stored.Spec.RenewTime.Equal(tried.Spec.RenewTime) {
		k.another(stored)
	}
	lease := k.renewal(stored)
	if lease.ResourceVersion == "" {
		return errors.New("the lease of the node was deleted while it was renewed")
	}
	k.latest, err = one(
		ctx,
		k.cfg.Client.Put().Namespace(v1.NamespaceNodeLease).Resource(resource).Name(k.cfg.Name).Body(lease),
	)
	return err
}

// renewal returns the renewed form of a lease, which it does not change.
func (k *Keeper) renewal(stored *coordinationv1.Lease) *coordinationv1.Lease {
	lease := stored.DeepCopy()
	lease.Namespace, lease.Name = v1.NamespaceNodeLease, k.cfg.Name
	lease.Spec.HolderIdentity = ptr.To(k.cfg.Name)
	seconds := int32(k.cfg.Duration / time.Second) //nolint:gosec // it is an int32 of the configuration
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &metav1.MicroTime{Time: k.after(stored.Spec.RenewTime)}
	if owner := k.ownerUID(); owner != "" {
		// The garbage collector of the cluster removes the lease with the Node.
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: k.cfg.Name, UID: owner}}
	}
	return lease
}

// after returns the time of a renewal after another one. It is later also if the clock was set back since: the control
// plane takes a node for dead whose lease does not have later and later times. A kubelet's node is lost then.
func (k *Keeper) after(last *metav1.MicroTime) time.Time {
	now := k.cfg.Clock.Now().Truncate(time.Microsecond)
	if last != nil && !last.Time.Before(now) {
		return last.Add(time.Microsecond)
	}
	return now
}

// another records that another holder has renewed the lease between two renewals.
func (k *Keeper) another(stored *coordinationv1.Lease) {
	if k.others++; k.others < takenAfter {
		return
	}
	k.cfg.Health.Set(
		healthTaken,
		fmt.Sprintf("another agent renews the lease of node %s, last at %s: two machines have one node name, "+
			"or two agents run on this one; give one of them another --hostname-override", k.cfg.Name, stored.Spec.RenewTime.UTC().Format(time.RFC3339)),
	)
	k.cfg.Metrics.taken.Set(1)
	if !k.taken {
		k.taken = true
		k.cfg.Logger.Error(
			"another agent renews the lease of this node: two machines have one node name, or two agents run on this one",
			"node", k.cfg.Name, "holder", ptr.Deref(stored.Spec.HolderIdentity, ""))
		if k.cfg.Taken != nil {
			k.cfg.Taken()
		}
	}
}

// alone records a renewal without another holder.
func (k *Keeper) alone() {
	k.others = 0
	if !k.taken {
		return
	}
	k.taken = false
	k.cfg.Health.Set(healthTaken, "")
	k.cfg.Metrics.taken.Set(0)
	k.cfg.Logger.Info("no other agent renews the lease of this node any more", "node", k.cfg.Name)
}

// failed records a failed renewal, and logs it if it is new.
func (k *Keeper) failed(err error, retry time.Duration) {
	k.latest = nil
	k.failures++
	k.cfg.Metrics.renewals.WithLabelValues(resultError).Inc()
	err = explain(err)
	k.cfg.Health.Set(healthName, err.Error())
	if text := err.Error(); text != k.complaint {
		k.complaint = text
		k.cfg.Logger.Warn("the lease of the node is not renewed; trying again", telemetry.KeyError, err,
			telemetry.KeyRetryAfter, retry)
	}
	if k.failures > 1 {
		k.cfg.Broken()
	}
}

// renewed records a successful renewal.
func (k *Keeper) renewed() {
	k.cfg.Metrics.renewals.WithLabelValues(resultSuccess).Inc()
	k.cfg.Metrics.last.Set(float64(k.cfg.Clock.Now().Unix()))
	k.cfg.Health.Set(healthName, "")
	if k.failures > 0 {
		k.cfg.Logger.Info("the lease of the node is renewed again", "failures", k.failures)
	}
	k.failures, k.complaint = 0, ""
}

// explain adds the remedy.
func explain(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf(
			"the lease of the node may not be renewed: its user must be system:node:NAME in the group system:nodes: %w",
			err,
		)
	case apierrors.IsNotFound(err):
		return fmt.Errorf(
			"the lease of the node cannot be made: the API server creates the namespace %s when it starts, check that it exists: %w",
			v1.NamespaceNodeLease,
			err,
		)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the lease of the node is not renewed because the API server does not answer in time: %w", err)
	default:
		return fmt.Errorf("the lease of the node is not renewed: %w", err)
	}
}

// resource is the name of leases in a URL.
const resource = "leases"

func (k *Keeper) get(ctx context.Context) (*coordinationv1.Lease, error) {
	return one(ctx, k.cfg.Client.Get().Namespace(v1.NamespaceNodeLease).Resource(resource).Name(k.cfg.Name))
}

// one sends a request whose response is a lease.
func one(ctx context.Context, request *rest.Request) (*coordinationv1.Lease, error) {
	lease := new(coordinationv1.Lease)
	if err := request.Do(ctx).Into(lease); err != nil {
		return nil, err
	}
	return lease, nil
}
