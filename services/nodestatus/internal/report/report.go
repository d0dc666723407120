// Package report keeps the status of the Node in the API server as it was computed here: sent when it has changed, and now
// and then so that the times in it are not old. What is sent is a patch of what this node owns, so conditions, labels and
// resources that others put on the Node stay.
//
// It runs beside the heart, which never waits for it, and by the side of package lease, whose sign of life does not wait
// for a status.
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
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/nodestatus/internal/nodeobject"
)

const (
	// tries is how often a status is tried to be sent before the next period, as by a kubelet.
	tries = 5
	// firstRetry is the wait after the first of them has failed; it doubles.
	firstRetry = 100 * time.Millisecond
	// healthName is under what the health says how it stands with the status.
	healthName = "nodestatus"
)

// Config says whose status to send, where, and how often.
type Config struct {
	// Client reaches the API server's core/v1. Nothing may hold its requests back.
	Client rest.Interface
	// Name is the name of the node.
	Name string
	// Period is how often it is looked whether the status differs from the API server's, nodeStatusUpdateFrequency.
	Period time.Duration
	// Frequency is after how long it is sent though it does not, nodeStatusReportFrequency.
	Frequency time.Duration
	// Timeout bounds each request.
	Timeout time.Duration
	// ExternalCloud says that the addresses that the API server has are a cloud provider's, and stay.
	ExternalCloud bool
	// Ready is told whenever the API server was sent that the Node is ready, and has it so; nil for nobody.
	Ready func()
	// Broken is called when tries fail in a row: the connection may be one on which nothing arrives any more.
	Broken func()
	// Health is told why the status is not sent.
	Health  *rpc.Health
	Clock   clock.WithTicker
	Logger  *slog.Logger
	Metrics *Metrics
	// Tracer makes a span "node.status" of each status that is sent, with the requests for it below.
	Tracer trace.Tracer
}

// Reporter sends the status. Make it with New.
type Reporter struct {
	cfg  Config
	wake chan struct{}

	mu sync.Mutex
	// computed is the Node as it was computed last, and there as the API server has it; each nil while there is none.
	computed, there *v1.Node

	// Of Run alone: when the status was sent last and how much later than Frequency it is sent next, what the API server did
	// not take, and what the log was told.
	sent      time.Time
	delay     time.Duration
	refused   refusals
	complaint string
}

// New returns a reporter that has sent nothing yet.
func New(cfg Config) *Reporter {
	return &Reporter{cfg: cfg, wake: make(chan struct{}, 1), refused: refusals{}} // one "something has changed" says as much as many
}

// Offer gives the Node as it was last computed. It never blocks, and the Node must not be changed afterwards.
func (r *Reporter) Offer(node *v1.Node) {
	r.mu.Lock()
	r.computed = node
	r.mu.Unlock()
	r.look()
}

// Seen gives the Node as the API server has it, whenever it is heard of, or nil when that has it no longer. It never blocks,
// and the Node must not be changed afterwards.
func (r *Reporter) Seen(node *v1.Node) {
	r.mu.Lock()
	first := r.there == nil || node == nil || r.there.UID != node.UID
	if first || newer(node, r.there) {
		r.there = node
	}
	r.mu.Unlock()
	if first && node != nil {
		r.look()
	}
}

// newer reports whether a Node is of a later version than another one.
func newer(a, than *v1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, than.ResourceVersion)
	return err != nil || order > 0
}

func (r *Reporter) look() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Reporter) known() (computed, there *v1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.computed, r.there
}

// answered notes the Node that the API server answered with, unless it was deleted meanwhile.
func (r *Reporter) answered(node *v1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.there != nil && newer(node, r.there) {
		r.there = node
	}
}

// Run sends the status until ctx ends: what is urgent at once, everything else with the next period.
func (r *Reporter) Run(ctx context.Context) {
	ticker := r.cfg.Clock.NewTicker(r.cfg.Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		case <-r.wake:
			if !r.urgent() {
				continue
			}
		}
		r.report(ctx)
	}
}

// urgent reports whether the API server says otherwise of a condition than this node: so it is known without delay when the
// node becomes ready, or no longer is.
func (r *Reporter) urgent() bool {
	computed, there := r.known()
	if computed == nil || there == nil {
		return false
	}
	for _, condition := range computed.Status.Conditions {
		if before := find(there.Status.Conditions, condition.Type); before == nil || before.Status != condition.Status {
			return true
		}
	}
	return false
}

// report sends the status if that is due, with some tries.
func (r *Reporter) report(ctx context.Context) {
	wait := firstRetry
	for try := range tries {
		err := r.try(ctx, try > 0)
		if err == nil || ctx.Err() != nil {
			return
		}
		r.failed(err)
		if try > 0 {
			r.cfg.Broken()
		}
		select {
		case <-ctx.Done():
			return
		case <-r.cfg.Clock.After(wait):
		}
		wait *= 2
	}
}

// try sends the status once if that is due. What the API server has is asked for afresh, and not taken from what was heard of
// it, after a failure and when all of it is sent for its age.
func (r *Reporter) try(ctx context.Context, afresh bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	ctx, span := telemetry.Start(ctx, r.cfg.Tracer, "node.status", telemetry.Subject{})
	asked := false
	defer func() {
		if !asked {
			telemetry.Idle(span)
		}
		telemetry.End(span, err)
	}()
	computed, there := r.known()
	if computed == nil || there == nil {
		return nil // the Node is registered with its status
	}
	now := r.cfg.Clock.Now()
	old := r.sent.IsZero() || now.Sub(r.sent) >= r.cfg.Frequency+r.delay
	if afresh || old || r.complaint != "" {
		asked = true
		if there, err = r.one(ctx, r.cfg.Client.Get()); err != nil {
			return r.gone(err)
		}
	}
	want := wanted(there.Status, computed.Status, now)
	if r.cfg.ExternalCloud {
		nodeobject.TakeAddresses(&want, there.Status)
	}
	names := differing(there.Status, want, r.refused)
	if len(names) == 0 && !old {
		r.recovered()
		return nil
	}
	changed := len(names) > 0
	patch, err := patchOf(there.Status, want, names)
	if err != nil {
		return err
	}
	asked = true
	answer, err := r.one(ctx, r.cfg.Client.Patch(types.StrategicMergePatchType).SubResource("status").Body(patch))
	if err != nil {
		return r.gone(err)
	}
	r.answered(answer)
	if ready := find(answer.Status.Conditions, v1.NodeReady); r.cfg.Ready != nil && ready != nil && ready.Status == v1.ConditionTrue {
		r.cfg.Ready()
	}
	r.refused.note(answer.Status, want, slices.DeleteFunc(names, isConditions))
	r.succeeded(changed)
	return nil
}

// one makes a request that is answered with the Node.
func (r *Reporter) one(ctx context.Context, request *rest.Request) (*v1.Node, error) {
	node := new(v1.Node)
	return node, request.Resource("nodes").Name(r.cfg.Name).Do(ctx).Into(node)
}

// gone is no error for a Node that the API server does not have: who registers it will hear of that.
func (r *Reporter) gone(err error) error {
	if apierrors.IsNotFound(err) {
		r.Seen(nil)
		return nil
	}
	return err
}

// succeeded notes that the status was sent now, and when it is to be sent again if it does not change. Nodes that were all
// started or changed at one moment are so no crowd later.
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

// recovered is the end of a complaint.
func (r *Reporter) recovered() {
	r.cfg.Health.Set(healthName, "")
	if r.complaint != "" {
		r.complaint = ""
		r.cfg.Logger.Info("the API server has the status of the Node again")
	}
}

// failed notes a try that has failed, in the log when it is news.
func (r *Reporter) failed(err error) {
	r.cfg.Metrics.reports.WithLabelValues(resultError).Inc()
	err = explain(err)
	r.cfg.Health.Set(healthName, err.Error())
	if text := err.Error(); text != r.complaint {
		r.complaint = text
		r.cfg.Logger.Warn("the status of the Node is not sent to the API server; trying again", telemetry.KeyError, err)
	}
}

// explain adds what to do.
func explain(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the API server does not let the status of the Node be changed: its user must be system:node:NAME in the group system:nodes: %w", err)
	case apierrors.IsInvalid(err):
		return fmt.Errorf("the API server does not take the status of the Node: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the API server does not answer in time to the status of the Node: see that it runs and can be reached: %w", err)
	default:
		return fmt.Errorf("the status of the Node is not sent to the API server: %w", err)
	}
}
