// Package report sends the computed status of the Node to the API server: when it has changed, and periodically so that
// its times stay recent. It sends a patch of the parts that this node owns, so that conditions, labels and resources of
// others stay.
//
// It runs beside the heart, which never waits for it, and beside package lease, whose renewals do not wait for a
// status.
package report

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

const (
	// tries is the number of attempts within a period, as in the kubelet.
	tries = 5
	// firstRetry is the delay after the first failed attempt; it doubles.
	firstRetry = 100 * time.Millisecond
	// releaseDelay is how long volumes that are no longer in use are collected for one request, because nothing on this
	// node waits for it. A kubelet sends them with the next period.
	releaseDelay = time.Second
	// healthName is the name in the health.
	healthName = "nodestatus"
)

// Config holds the parameters of a Reporter.
type Config struct {
	// Client is the client for core/v1. It must have no rate limit.
	Client rest.Interface
	// Name is the name of the node.
	Name string
	// Period is the interval of comparisons with the API server's status, nodeStatusUpdateFrequency.
	Period time.Duration
	// Frequency is the interval after which an unchanged status is sent, nodeStatusReportFrequency.
	Frequency time.Duration
	// Timeout bounds each request.
	Timeout time.Duration
	// VolumesInUse returns the sorted volumes in use; known is false while it must not change those in the API server.
	VolumesInUse func() (names []v1.UniqueVolumeName, known bool)
	// Delayed returns why a node that is not ready in the API server must not become ready; empty if it may.
	Delayed func() string
	// ExternalCloud is true if the addresses in the API server are set by a cloud provider.
	ExternalCloud bool
	// Ready is called when the API server has received and stored that the node is ready; it may be nil.
	Ready func()
	// Broken is called if consecutive attempts fail, because the connection may be dead.
	Broken func()
	// Health reports why the status is not sent.
	Health  *rpc.Health
	Clock   clock.WithTicker
	Logger  *slog.Logger
	Metrics *Metrics
	// Tracer creates a span "node.status" for each sent status, with its requests as children.
	Tracer trace.Tracer
}

// Reporter sends the status. Create it with New.
type Reporter struct {
	cfg   Config
	wake  chan struct{}
	steps *watchdog.Steps

	mu sync.Mutex
	// computed is the last computed Node, and stored the Node in the API server; each may be nil.
	computed, stored *v1.Node

	// Only Run uses the following fields: the time of the last status and the extension of Frequency for the next one, the
	// refused fields, and the last logged problem.
	sent      time.Time
	delay     time.Duration
	refused   refusals
	complaint string
}

// New returns a reporter, which starts with Run.
func New(cfg Config) *Reporter {
	// one signal covers any number of changes
	return &Reporter{
		cfg: cfg, wake: make(chan struct{}, 1), refused: refusals{}, steps: watchdog.NewSteps(cfg.Clock, cfg.Timeout),
	}
}

// Stands returns why the loop of reports stands still; nil if it turns. A report that the API server does not answer
// has a deadline.
func (r *Reporter) Stands() error { return r.steps.Stands() }

// Offer sets the last computed Node. It never blocks, and the Node must not be changed afterwards.
func (r *Reporter) Offer(node *v1.Node) {
	r.mu.Lock()
	r.computed = node
	r.mu.Unlock()
	r.look()
}

// Seen sets the Node in the API server, whenever it is read, or nil if it does not exist any more. It never blocks, and
// the Node must not be changed afterwards.
func (r *Reporter) Seen(node *v1.Node) {
	r.mu.Lock()
	first := r.stored == nil || node == nil || r.stored.UID != node.UID
	if first || newer(node, r.stored) {
		r.stored = node
	}
	r.mu.Unlock()
	if first && node != nil {
		r.look()
	}
}

// newer reports whether a Node has a later version than another one.
func newer(a, other *v1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, other.ResourceVersion)
	return err != nil || order > 0
}

// Changed requests that a change of the volumes in use is sent, because volumes are mounted and detached only after
// that, or that the node is ready when Delayed has changed. It does not block.
func (r *Reporter) Changed() { r.look() }

func (r *Reporter) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reporter) known() (computed, stored *v1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.computed, r.stored
}

// answered records the Node in a response of the API server, unless it was deleted in the meantime.
func (r *Reporter) answered(node *v1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stored != nil && newer(node, r.stored) {
		r.stored = node
	}
}

// Run sends the status until ctx ends: urgent changes at once or soon, and others with the next period.
func (r *Reporter) Run(ctx context.Context) {
	ticker := r.cfg.Clock.NewTicker(r.cfg.Period)
	defer ticker.Stop()
	var later <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-later:
		case <-r.wake:
			var now, soon bool
			r.steps.Do(func() { now, soon = r.urgent() })
			if soon && !now && later == nil {
				later = r.cfg.Clock.After(releaseDelay)
			}
			if !now {
				continue
			}
		}
		later = nil
		r.report(ctx)
	}
}

// urgent reports whether a condition in the API server differs from that of this node, or a volume in use is missing
// there, so that a change of readiness is visible, and a volume can be mounted, without delay. Soon is true if one of
// the volumes there is no longer in use, and can be detached.
func (r *Reporter) urgent() (now, soon bool) {
	computed, stored := r.known()
	if computed == nil || stored == nil {
		return false, false
	}
	for _, condition := range computed.Status.Conditions {
		if before := find(stored.Status.Conditions, condition.Type); before == nil || before.Status != condition.Status {
			return true, false
		}
	}
	volumes, known := r.cfg.VolumesInUse()
	if !known || slices.Equal(volumes, stored.Status.VolumesInUse) {
		return false, false
	}
	there := sets.New(stored.Status.VolumesInUse...)
	return !there.HasAll(volumes...), true
}

// report sends the status if it is due, with several attempts.
func (r *Reporter) report(ctx context.Context) {
	wait := firstRetry
	for try := range tries {
		done := false
		r.steps.Do(func() { done = r.tried(ctx, try) })
		if done {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-r.cfg.Clock.After(wait):
		}
		wait *= 2
	}
}

// tried is one of several attempts, and reports whether it is the last one.
func (r *Reporter) tried(ctx context.Context, number int) (done bool) {
	err := r.try(ctx, number > 0)
	if err == nil || ctx.Err() != nil {
		return true
	}
	r.failed(err)
	if number > 0 {
		r.cfg.Broken()
	}
	return false
}

// try sends the status once if it is due. It reads the Node from the API server first, instead of using the last seen
// one, after a failure and for a periodic full status.
func (r *Reporter) try(ctx context.Context, afresh bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	ctx, span := telemetry.Start(ctx, r.cfg.Tracer, "node.status", telemetry.Subject{})
	requested := false
	defer func() {
		if !requested {
			telemetry.Idle(span)
		}
		telemetry.End(span, err)
	}()
	computed, stored := r.known()
	if computed == nil || stored == nil {
		return nil // the Node is registered with its status
	}
	now := r.cfg.Clock.Now()
	old := r.sent.IsZero() || now.Sub(r.sent) >= r.cfg.Frequency+r.delay
	if afresh || old || r.complaint != "" {
		requested = true
		if stored, err = r.one(ctx, r.cfg.Client.Get()); err != nil {
			return r.gone(err)
		}
	}
	want := wanted(stored.Status, r.delayed(stored.Status, computed.Status), now)
	want.VolumesInUse = stored.Status.VolumesInUse
	if volumes, known := r.cfg.VolumesInUse(); known {
		want.VolumesInUse = volumes
	}
	if r.cfg.ExternalCloud {
		nodeobject.TakeAddresses(&want, stored.Status)
	}
	names := differing(stored.Status, want, r.refused)
	if len(names) == 0 && !old {
		r.recovered()
		return nil
	}
	changed := len(names) > 0
	patch, err := patchOf(stored.Status, want, names)
	if err != nil {
		return err
	}
	requested = true
	answer, err := r.one(ctx, r.cfg.Client.Patch(types.StrategicMergePatchType).SubResource("status").Body(patch))
	if err != nil {
		return r.gone(err)
	}
	r.answered(answer)
	if ready := find(
		answer.Status.Conditions,
		v1.NodeReady,
	); r.cfg.Ready != nil && ready != nil &&
		ready.Status == v1.ConditionTrue {
		r.cfg.Ready()
	}
	r.refused.note(answer.Status, want, slices.DeleteFunc(names, isConditions))
	r.succeeded(changed)
	return nil
}

// delayed returns the computed status; not ready if it must not become ready yet. A node that is ready stays so.
func (r *Reporter) delayed(stored, computed v1.NodeStatus) v1.NodeStatus {
	why := r.cfg.Delayed()
	if ready := find(stored.Conditions, v1.NodeReady); why == "" || ready != nil && ready.Status == v1.ConditionTrue {
		return computed
	}
	computed = *computed.DeepCopy()
	nodeobject.Delay(&computed, why)
	return computed
}

// one sends a request whose response is the Node.
func (r *Reporter) one(ctx context.Context, request *rest.Request) (*v1.Node, error) {
	node := new(v1.Node)
	return node, request.Resource("nodes").Name(r.cfg.Name).Do(ctx).Into(node)
}

// gone returns nil for a Node that does not exist, because package registration handles it.
func (r *Reporter) gone(err error) error {
	if apierrors.IsNotFound(err) {
		r.Seen(nil)
		return nil
	}
	return err
}

// succeeded records that the status was sent, and when to send it again if it does not change. The random extension
// spreads nodes that were started or changed at the same moment.
func (r *Reporter) succeeded(changed bool) {
	spread := 0.0
	if changed || r.sent.IsZero() {
		spread = rand.Float64() - 0.5 //nolint:gosec // it only keeps nodes apart
	}
	r.delay = time.Duration(spread * float64(r.cfg.Frequency))
	r.sent = r.cfg.Clock.Now()
	r.cfg.Metrics.reports.WithLabelValues(resultSuccess).Inc()
	r.cfg.Metrics.last.Set(float64(r.sent.Unix()))
	r.recovered()
}

// recovered ends a complaint.
func (r *Reporter) recovered() {
	r.cfg.Health.Set(healthName, "")
	if r.complaint != "" {
		r.complaint = ""
		r.cfg.Logger.Info("the API server has the status of the Node again")
	}
}

// failed records a failed attempt, and logs it if it is new.
func (r *Reporter) failed(err error) {
	r.cfg.Metrics.reports.WithLabelValues(resultError).Inc()
	err = explain(err)
	r.cfg.Health.Set(healthName, err.Error())
	if text := err.Error(); text != r.complaint {
		r.complaint = text
		r.cfg.Logger.Warn("the status of the Node is not sent to the API server; trying again", telemetry.KeyError, err)
	}
}

// explain adds the remedy.
func explain(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf(
			"the API server does not permit changing the status of the Node: its user must be system:node:NAME in the group system:nodes: %w",
			err,
		)
	case apierrors.IsInvalid(err):
		return fmt.Errorf("the API server does not accept the status of the Node: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf(
			"the API server does not answer in time to the status of the Node: check that it runs and is reachable: %w",
			err,
		)
	default:
		return fmt.Errorf("the status of the Node is not sent to the API server: %w", err)
	}
}
