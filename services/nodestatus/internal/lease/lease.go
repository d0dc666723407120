// Package lease renews the node's lease in the API server, by which a control plane knows that the node lives. It is a
// sign of life of this process and says nothing of how the node is: that is in the conditions, which package report sends.
// So nothing on the node holds it up, neither a peer that is away nor a computation of the Node that hangs.
//
// Two agents with one node name are found here: a lease that is renewed by somebody else between two renewals of ours.
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
)

const (
	// renewals is how often a lease is renewed while it lasts, as by a kubelet.
	renewals = 4
	// jitter is by what share of the time between two renewals they are apart more, so that the nodes that an API server
	// comes back to do not all ask at one moment.
	jitter = 0.04
	// firstRetry and lastRetry are the kubelet's: the first wait after a failure, which doubles, and the longest.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 7 * time.Second
	// takenAfter is after how many renewals in a row that found the lease renewed by somebody else there are two agents with
	// one name. One is what a process leaves that has just been replaced.
	takenAfter = 2
	// healthName and healthTaken are under what the health says how it stands with the lease.
	healthName  = "lease"
	healthTaken = "nodename"
)

// RenewInterval is the time between two renewals of a lease that lasts so long.
func RenewInterval(duration time.Duration) time.Duration { return duration / renewals }

// Config says whose lease to keep, where, and whom to tell.
type Config struct {
	// Client reaches the API server's coordination/v1. Nothing may hold its requests back, and each must end in less time than
	// there is between two renewals.
	Client rest.Interface
	// Name is the name of the node, of the lease and of its holder.
	Name string
	// Duration is how long the lease lasts, nodeLeaseDurationSeconds. It is renewed four times meanwhile.
	Duration time.Duration
	// Broken is called when renewals fail in a row: the connection may be one on which nothing arrives any more.
	Broken func()
	// Taken is told when it turns out that another agent renews the lease of this node; nil for nobody.
	Taken func()
	// Health is told why the lease is not renewed.
	Health  *rpc.Health
	Clock   clock.Clock
	Logger  *slog.Logger
	Metrics *Metrics
	// Tracer makes a span "lease.renew" of each renewal, with the requests for it below.
	Tracer trace.Tracer
}

// Keeper keeps the lease. Make it with New.
type Keeper struct {
	cfg Config

	mu    sync.Mutex
	owner types.UID
	// owned is told when there is an owner; it has room for one.
	owned chan struct{}

	// Of Run alone: the lease as it was written last, nil when it has to be looked for; the failures in a row, and what the
	// log was told of them; the renewals in a row that found somebody else's.
	latest    *coordinationv1.Lease
	failures  int
	complaint string
	others    int
	taken     bool
}

// New returns a keeper that has asked for nothing yet, and says so in the health.
func New(cfg Config) *Keeper {
	cfg.Health.Set(healthName, "the lease of the node has not been renewed yet")
	return &Keeper{cfg: cfg, owned: make(chan struct{}, 1)}
}

// Registered says as what the API server has the Node, which owns the lease: nil when it does not have it.
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

// Run renews the lease until ctx ends. A lease that is not there yet is made once the API server has the Node.
func (k *Keeper) Run(ctx context.Context) {
	delay := firstRetry
	for ctx.Err() == nil {
		wait := k.pause()
		err := k.renew(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNoOwner):
			k.cfg.Health.Set(healthName, err.Error())
		case err != nil:
			wait = delay
			delay = min(2*delay, lastRetry)
			k.failed(err, wait)
		default:
			delay = firstRetry
			k.renewed()
		}
		select {
		case <-ctx.Done():
		case <-k.owned:
		case <-k.cfg.Clock.After(wait):
		}
	}
}

// pause is the time to the next renewal.
func (k *Keeper) pause() time.Duration {
	interval := RenewInterval(k.cfg.Duration)
	return interval + time.Duration(rand.Float64()*jitter*float64(interval)) //nolint:gosec // it only keeps nodes apart
}

// errNoOwner is for a lease that is not there and may not be made yet.
var errNoOwner = errors.New("there is no lease of the node until the API server has the Node")

// renew writes the lease once. It fails when it is not written; the next try looks for it.
func (k *Keeper) renew(ctx context.Context) (err error) {
	// One that the API server puts off again and again (429) ends in time for the next, too.
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
	k.latest, err = one(ctx, k.cfg.Client.Put().Namespace(v1.NamespaceNodeLease).Resource(resource).Name(k.cfg.Name).Body(lease))
	if apierrors.IsConflict(err) {
		return k.contended(ctx, lease)
	}
	if err == nil {
		k.alone()
	}
	return err
}

// find returns the lease that the API server has, or an empty one when there is none.
func (k *Keeper) find(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := k.get(ctx)
	if apierrors.IsNotFound(err) {
		return &coordinationv1.Lease{}, nil
	}
	return lease, err
}

// contended is for a lease that was written by somebody else since we wrote it: it is written over what is there now.
func (k *Keeper) contended(ctx context.Context, tried *coordinationv1.Lease) error {
	there, err := k.find(ctx)
	if err != nil {
		return err
	}
	// A write of ours whose answer was lost has our time in it.
	if there.ResourceVersion != "" && !there.Spec.RenewTime.Equal(tried.Spec.RenewTime) {
		k.another(there)
	}
	lease := k.renewal(there)
	if lease.ResourceVersion == "" {
		return errors.New("the lease of the node was deleted while it was renewed")
	}
	k.latest, err = one(ctx, k.cfg.Client.Put().Namespace(v1.NamespaceNodeLease).Resource(resource).Name(k.cfg.Name).Body(lease))
	return err
}

// renewal makes what is to be written of what is there, which it does not change.
func (k *Keeper) renewal(there *coordinationv1.Lease) *coordinationv1.Lease {
	lease := there.DeepCopy()
	lease.Namespace, lease.Name = v1.NamespaceNodeLease, k.cfg.Name
	lease.Spec.HolderIdentity = ptr.To(k.cfg.Name)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(k.cfg.Duration / time.Second)) //nolint:gosec // it is an int32 of the configuration
	lease.Spec.RenewTime = &metav1.MicroTime{Time: k.cfg.Clock.Now().Truncate(time.Microsecond)}
	if owner := k.ownerUID(); owner != "" {
		// With the Node goes the lease: the garbage collector of the cluster sees to that.
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: k.cfg.Name, UID: owner}}
	}
	return lease
}

// another notes that the lease was renewed by somebody else between two renewals.
func (k *Keeper) another(there *coordinationv1.Lease) {
	if k.others++; k.others < takenAfter {
		return
	}
	k.cfg.Health.Set(healthTaken, fmt.Sprintf("another agent renews the lease of node %s, last at %s: two machines have one node name, "+
		"or two agents run on this one; give one of them another --hostname-override", k.cfg.Name, there.Spec.RenewTime.UTC().Format(time.RFC3339)))
	k.cfg.Metrics.taken.Set(1)
	if !k.taken {
		k.taken = true
		k.cfg.Logger.Error("another agent renews the lease of this node: two machines have one node name, or two agents run on this one",
			"node", k.cfg.Name, "holder", ptr.Deref(there.Spec.HolderIdentity, ""))
		if k.cfg.Taken != nil {
			k.cfg.Taken()
		}
	}
}

// alone notes a renewal that nobody else was in the way of.
func (k *Keeper) alone() {
	k.others = 0
	if !k.taken {
		return
	}
	k.taken = false
	k.cfg.Health.Set(healthTaken, "")
	k.cfg.Metrics.taken.Set(0)
	k.cfg.Logger.Info("nobody else renews the lease of this node any more", "node", k.cfg.Name)
}

// failed notes a renewal that has failed, in the log when it is news.
func (k *Keeper) failed(err error, retry time.Duration) {
	k.latest = nil
	k.failures++
	k.cfg.Metrics.renewals.WithLabelValues(resultError).Inc()
	err = explain(err)
	k.cfg.Health.Set(healthName, err.Error())
	if text := err.Error(); text != k.complaint {
		k.complaint = text
		k.cfg.Logger.Warn("the lease of the node is not renewed; trying again", telemetry.KeyError, err, telemetry.KeyRetryAfter, retry)
	}
	if k.failures > 1 {
		k.cfg.Broken()
	}
}

// renewed notes one that has worked.
func (k *Keeper) renewed() {
	k.cfg.Metrics.renewals.WithLabelValues(resultSuccess).Inc()
	k.cfg.Metrics.last.Set(float64(k.cfg.Clock.Now().Unix()))
	k.cfg.Health.Set(healthName, "")
	if k.failures > 0 {
		k.cfg.Logger.Info("the lease of the node is renewed again", "failures", k.failures)
	}
	k.failures, k.complaint = 0, ""
}

// explain adds what to do.
func explain(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the lease of the node may not be renewed: its user must be system:node:NAME in the group system:nodes: %w", err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("the lease of the node cannot be made: the API server makes the namespace %s when it starts, see that it is there: %w", v1.NamespaceNodeLease, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the lease of the node is not renewed, for the API server does not answer in time: %w", err)
	default:
		return fmt.Errorf("the lease of the node is not renewed: %w", err)
	}
}

// resource is what leases are called in a URL.
const resource = "leases"

func (k *Keeper) get(ctx context.Context) (*coordinationv1.Lease, error) {
	return one(ctx, k.cfg.Client.Get().Namespace(v1.NamespaceNodeLease).Resource(resource).Name(k.cfg.Name))
}

// one makes a request that is answered with a lease.
func one(ctx context.Context, request *rest.Request) (*coordinationv1.Lease, error) {
	lease := new(coordinationv1.Lease)
	if err := request.Do(ctx).Into(lease); err != nil {
		return nil, err
	}
	return lease, nil
}
