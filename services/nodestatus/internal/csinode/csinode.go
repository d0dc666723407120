// Package csinode publishes the CSI drivers of this node in the API server: the CSINode, and on the Node the topology
// labels and the annotation with the drivers' IDs. Schedulers, attachers and provisioners of volumes read them.
//
// The node is not ready before its CSINode exists, as in the kubelet, so that a scheduler never sees a ready node whose
// limits of volumes are unknown.
package csinode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/inventory"
)

const (
	// firstRetry is the delay after a failure, which doubles to lastRetry. The node may wait for it to become ready.
	firstRetry, lastRetry = 100 * time.Millisecond, 10 * time.Second
	// period is the interval of comparisons with the API server, which repair what others have changed.
	period = 5 * time.Minute
	// requestTimeout bounds the requests between two waits.
	requestTimeout = 10 * time.Second
	// maxWrites bounds the versions of the CSINode that are written at a time: one that removes changed entries, one that
	// adds them, and one after a conflict.
	maxWrites = 4
	// healthName is the name in the health.
	healthName = "csinode"
)

// Config holds the parameters of a Keeper.
type Config struct {
	// Core and Storage are clients for core/v1 and storage/v1.
	Core, Storage rest.Interface
	// Name is the name of the node.
	Name string
	// Drivers returns the drivers: (*inventory.Inventory).Drivers.
	Drivers func() inventory.Drivers
	// Health reports why the drivers are not published.
	Health *rpc.Health
	Clock  clock.Clock
	Logger *slog.Logger
	// Tracer creates a span "node.csinode" for each comparison, with its requests as children.
	Tracer trace.Tracer
}

// Keeper publishes the drivers. Create it with New.
type Keeper struct {
	cfg Config
	api api
	// changed has capacity one, because one comparison covers every change.
	changed chan struct{}

	mu sync.Mutex
	// node has the name, UID, labels and annotations of the Node in the API server; nil if it does not exist.
	node *v1.Node
	// trouble is why the node is not ready.
	trouble string

	// Only Run uses the following fields: the last logged problem, and the last logged refusals of drivers.
	complaint string
	refused   map[string]string
}

// New returns a keeper, which starts with Run.
func New(cfg Config) *Keeper {
	return &Keeper{
		cfg: cfg, api: api{core: cfg.Core, storage: cfg.Storage, name: cfg.Name}, changed: make(chan struct{}, 1),
		trouble: "CSINode is not yet initialized",
	}
}

// Trouble returns why the node is not ready, in the kubelet's words; empty once the CSINode exists.
func (k *Keeper) Trouble() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.trouble
}

// Registered sets the Node in the API server; nil if it does not exist. It never blocks, and the Node must not be
// changed afterwards.
func (k *Keeper) Registered(node *v1.Node) {
	k.mu.Lock()
	before := k.node
	k.node = node
	k.mu.Unlock()
	if node != nil && (before == nil || before.UID != node.UID || !maps.Equal(before.Labels, node.Labels) ||
		!maps.Equal(before.Annotations, node.Annotations)) {
		k.Changed()
	}
}

// Changed requests a comparison, because the drivers have changed. It does not block.
func (k *Keeper) Changed() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// Run publishes the drivers until ctx ends. initialized is called when Trouble becomes empty; it must not block.
func (k *Keeper) Run(ctx context.Context, initialized func()) {
	delay := firstRetry
	timer := k.cfg.Clock.NewTimer(period)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.changed:
		case <-timer.C():
		}
		wait := period
		if err := k.once(ctx, initialized); err != nil {
			if ctx.Err() != nil {
				return
			}
			k.complain(err, delay)
			wait, delay = delay, min(2*delay, lastRetry)
		} else {
			k.recovered()
			delay = firstRetry
		}
		timer.Stop()
		timer.Reset(wait)
	}
}

// once compares the API server with the drivers, and writes what differs: what is added first to the Node, and what is
// removed first from the CSINode, as in the kubelet.
func (k *Keeper) once(ctx context.Context, initialized func()) (err error) {
	k.mu.Lock()
	node := k.node
	k.mu.Unlock()
	if node == nil {
		return nil // package registration registers it
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ctx, span := telemetry.Start(ctx, k.cfg.Tracer, "node.csinode", telemetry.Subject{})
	wrote := false
	defer func() {
		if !wrote {
			telemetry.Idle(span)
		}
		telemetry.End(span, err)
	}()
	now := k.cfg.Clock.Now()
	drivers := accept(node, k.cfg.Drivers())
	k.refuse(drivers.refused)
	added := metadataOf(node, drivers, now, false)
	wrote = !added.empty()
	if err := k.mark(ctx, added); err != nil {
		return err
	}
	published, err := k.publish(ctx, node, drivers, now)
	wrote = wrote || published
	if err != nil {
		return err
	}
	if k.initialized() {
		initialized()
	}
	removed := metadataOf(node, drivers, now, true)
	removed.labels = nil
	if removed.annotation != nil && (added.annotation == nil || *added.annotation != *removed.annotation) {
		wrote = true
		if err := k.mark(ctx, removed); err != nil {
			return err
		}
	}
	reported, err := k.publishHealth(ctx, drivers.Drivers)
	wrote = wrote || reported
	return err
}

func (k *Keeper) mark(ctx context.Context, change metadata) error {
	if change.empty() {
		return nil
	}
	if err := k.api.mark(ctx, change); err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: %w", err)
	}
	return nil
}

// publish makes the CSINode match the drivers, and reports whether it has written it.
func (k *Keeper) publish(
	ctx context.Context, node *v1.Node, drivers accepted, now time.Time,
) (wrote bool, err error) {
	strict := false
	for range maxWrites {
		there, created, err := k.ensure(ctx, node)
		wrote = wrote || created
		if err != nil {
			return wrote, err
		}
		want := next(there, drivers, now, strict)
		if want == nil {
			return wrote, nil
		}
		wrote = true
		switch _, err := k.api.update(ctx, want); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err): // the next attempt reads it again
		case apierrors.IsInvalid(err) && !strict:
			strict = true
		case err != nil:
			return wrote, fmt.Errorf("error updating CSINode object with CSI driver node info: %w", err)
		}
	}
	return wrote, errors.New("error updating CSINode object with CSI driver node info: other clients change it all the time")
}

// ensure returns the CSINode of the API server, which it creates if it is missing or belongs to an earlier Node of the
// same name.
func (k *Keeper) ensure(ctx context.Context, node *v1.Node) (there *storagev1.CSINode, created bool, err error) {
	there, err = k.api.get(ctx)
	if err == nil && isOwned(there, node) {
		return there, false, nil
	}
	if err == nil {
		k.cfg.Logger.Info("replacing the CSINode of an earlier Node of the same name", "node", k.cfg.Name)
		err = k.api.remove(ctx, there.UID)
	}
	if err == nil || apierrors.IsNotFound(err) {
		there, err = k.api.create(ctx, fresh(node))
	}
	if err != nil {
		return nil, true, fmt.Errorf("failed to initialize CSINode: %w", err)
	}
	return there, true, nil
}

// initialized lets the node become ready, and reports whether it might not before.
func (k *Keeper) initialized() (first bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	first = k.trouble != ""
	k.trouble = ""
	return first
}

// refuse logs why drivers cannot be published, if it is new.
func (k *Keeper) refuse(refused map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(refused)) {
		if k.refused[name] != refused[name] {
			k.cfg.Logger.Warn("a CSI driver is not published because its topology contradicts the Node: "+
				"correct the label of the Node or the driver", telemetry.KeyDriver, name, telemetry.KeyError, refused[name])
		}
	}
	k.refused = refused
}

// complain reports a failure in the health and, until the CSINode exists, in the node's readiness, and logs it if it is
// new.
func (k *Keeper) complain(err error, delay time.Duration) {
	text := explain(err)
	k.cfg.Health.Set(healthName, text)
	k.mu.Lock()
	if k.trouble != "" {
		k.trouble = err.Error()
	}
	k.mu.Unlock()
	if text != k.complaint {
		k.complaint = text
		k.cfg.Logger.Warn("the CSI drivers of the node are not published; trying again", telemetry.KeyError, text,
			telemetry.KeyRetryAfter, delay)
	}
}

// recovered ends a complaint.
func (k *Keeper) recovered() {
	k.cfg.Health.Set(healthName, strings.Join(slices.Sorted(maps.Values(k.refused)), "; "))
	if k.complaint != "" {
		k.complaint = ""
		k.cfg.Logger.Info("the CSI drivers of the node are published again")
	}
}

// explain returns an error with the remedy.
func explain(err error) string {
	if health := (*healthError)(nil); errors.As(err, &health) && apierrors.IsForbidden(err) {
		return "the API server does not permit writing the status of the CSINode; it needs the feature gate " +
			"CSIVolumeHealth too: " + err.Error()
	}
	if apierrors.IsForbidden(err) {
		return "the API server does not permit writing the CSINode: the user of the kubeconfig must be system:node:NAME in " +
			"the group system:nodes: " + err.Error()
	}
	return err.Error()
}
