package podworkers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
)

const (
	// settleDelay is how long a worker waits for pleg's events after its own write, before it asks pleg. It is long enough
	// for the runtime's event and the inspection that follows, and short enough that nobody notices a missed event.
	settleDelay = 100 * time.Millisecond
	// transientDelay is the mean time until the retry after an error that is likely to pass.
	transientDelay = 10 * time.Second
	// awayDelay is the mean time until the retry when the runtime or pleg was unreachable: a restarted service is back
	// within a second. It doubles with every second consecutive failure, at most awayDoublings times.
	awayDelay     = 500 * time.Millisecond
	awayDoublings = 6
	// killAgainDelay is how long a worker waits after a successful kill if pleg still observes something running.
	killAgainDelay = time.Second
	// observeTimeout bounds a call to pleg. A restarted pleg is back well within it.
	observeTimeout = 10 * time.Second
	// delayJitter spreads retries, so that pods that failed together do not retry together.
	delayJitter = 0.5
	// keepExited is the number of ended containers that are kept for each name, for logs and exit codes.
	keepExited = 1
)

// outcome is the result of a piece of work.
type outcome struct {
	// input moves the pod to the next state; 0 if it stays.
	input Input
	// err is the error of the work; nil if it succeeded.
	err error
	// after is the time until the next work without a cause; 0 for never.
	after time.Duration
	// waits is Wait.For.
	waits string
	// unfinished is true if the worker has to continue this work although nothing failed.
	unfinished bool
	// skipped is true if there was nothing to do yet.
	skipped bool
}

// sync makes the runtime match the pod.
func (w *worker) sync(ctx context.Context, cause Cause) outcome {
	cfg := w.pool.cfg
	if cause.Kind == CauseSeen && !w.newer(cfg.Statuses.Observed(w.uid)) {
		return outcome{after: settleDelay, skipped: true}
	}
	defer w.begin(ctx)()
	ctx, span := w.span(ctx, "pod.sync", cause)
	defer span.End()
	begun := cfg.Clock.Now()
	w.takeOver()
	observed, err := w.observe(ctx, cfg.Observer)
	if err == nil {
		err = inspected(observed)
	}
	if err != nil {
		return w.failed(ctx, span, err, transientDelay)
	}
	w.measureStart(begun, observed)
	w.resizing(ctx, observed)
	if phase := cfg.Statuses.Phase(w.uid); phase == v1.PodSucceeded || phase == v1.PodFailed {
		cfg.Logger.InfoContext(ctx, "pod has run to its end", telemetry.KeyPod, w.fullName.String(), telemetry.KeyPhase,
			string(phase))
		return outcome{input: InputFinished}
	}
	if err := w.networkFor(observed); err != nil {
		w.warn(ctx, podstatus.ReasonNoNetwork, err.Error())
		cfg.Statuses.Synced(w.uid, SyncReport{ReasonsKnown: true, Wait: WaitOf(Facts{Sandbox: err}).Reason})
		return w.failed(ctx, span, err, transientDelay)
	}
	result, err := cfg.Runtime.SyncPod(ctx, w.pod, observed)
	if result.ResizeError != nil && ctx.Err() == nil {
		w.resizeFailed(ctx, result.ResizeError)
	}
	if result.Wrote || err != nil {
		w.lastWrite, w.looking = cfg.BootTime(), false
	}
	facts := Facts{Sandbox: result.SandboxError, Reasons: result.Reasons}
	cfg.Statuses.Synced(w.uid, SyncReport{
		ReasonsKnown: err == nil || result.Reasons != nil || result.SandboxError != nil,
		Wait:         WaitOf(facts).Reason, Reasons: result.Reasons, Cgroup: result.Cgroup,
	})
	if ctx.Err() != nil {
		return cutShort(span)
	}
	if err == nil {
		err = cmp.Or(result.SandboxError, result.ResizeError)
	}
	delay := transientDelay
	if err != nil {
		delay, err = w.delayAfter(err), fmt.Errorf("sync the pod: %w", err)
	}
	// also after a failed sync, because one container may crash for weeks while the image of another cannot be pulled
	if !isAway(err) {
		err = both(err, w.prune(ctx, observed))
	}
	if err != nil {
		out := w.failed(ctx, span, err, delay)
		facts.Failed = err
		out.waits = WaitOf(facts).For
		if result.RetryAfter > 0 {
			out.after = min(out.after, result.RetryAfter)
		}
		return out
	}
	out := outcome{
		after: cfg.Jitter(cfg.Resync), unfinished: result.Wrote || result.RetryAfter > 0, waits: WaitOf(facts).For,
	}
	if w.looking && !out.unfinished {
		telemetry.Idle(span)
	}
	if result.RetryAfter > 0 {
		out.after = min(out.after, result.RetryAfter)
	}
	if result.Wrote {
		out.after = min(out.after, settleDelay)
	}
	return out
}

// delayAfter returns the mean time until the retry of a failed sync. An error of the runtime or the kernel may pass,
// and so may the runtime's absence. An error of the pod itself does not.
func (w *worker) delayAfter(err error) time.Duration {
	if refused(err) || classify(err).passes {
		return min(transientDelay, w.pool.cfg.Resync)
	}
	return w.pool.cfg.Resync
}

// terminate stops everything of the pod that runs, until an observation after the last write shows nothing.
func (w *worker) terminate(ctx context.Context, cause Cause) outcome {
	cfg := w.pool.cfg
	ctx, span := w.span(ctx, "pod.terminate", cause)
	defer span.End()
	for killed := false; ; killed = true {
		observed, err := w.observe(ctx, cfg.EndObserver)
		if err != nil {
			return w.failed(ctx, span, err, transientDelay)
		}
		if !Runs(observed) {
			if err := inspected(observed); err != nil {
				return w.failed(ctx, span, err, transientDelay)
			}
			if err := cfg.Endings.Forget(w.uid); err != nil {
				cfg.Logger.WarnContext(ctx, "cannot remove the file of the grace period of a pod that has ended", telemetry.KeyPod, w.fullName.String(), telemetry.KeyError, err)
			}
			return outcome{input: InputStopped}
		}
		if killed {
			w.warn(ctx, eventExceededGrace, "Container runtime did not kill the pod within specified grace period.")
			return outcome{after: killAgainDelay, unfinished: true}
		}
		grace := w.graceLeft(ctx)
		if span.IsRecording() {
			span.SetAttributes(telemetry.AttrGracePeriod.Int64(grace))
		}
		err = cfg.Runtime.KillPod(ctx, w.pod, observed, grace)
		w.lastWrite = cfg.BootTime()
		if err != nil {
			w.warn(ctx, eventFailedKill, "error killing pod: "+err.Error())
			return w.failed(ctx, span, fmt.Errorf("stop the pod: %w", err), transientDelay)
		}
	}
}

// graceLeft returns the seconds that the containers have to stop: the rest of the requested grace period, which may
// have begun in an earlier process, or the full one if the pod ran to its end by itself.
func (w *worker) graceLeft(ctx context.Context) int64 {
	grace := GraceOf(w.pod, w.end)
	if w.end == nil {
		return grace
	}
	left, err := w.pool.cfg.Endings.Left(w.uid, grace)
	if err != nil {
		w.pool.cfg.Logger.WarnContext(ctx, "if syncloop is killed before the pod has ended, the pod gets its full grace period again",
			telemetry.KeyPod, w.fullName.String(), telemetry.KeyError, err)
	}
	return left
}

// cleanUp removes the containers, sandboxes and files of a pod that no source names. The ended containers of a pod that
// is still named stay: they show that it must not be started again, until package containergc finds them unneeded. Only
// the resources of the machine are released. The same applies to a pod whose next life waits and continues the restart
// counts, as with the kubelet.
func (w *worker) cleanUp(ctx context.Context, cause Cause) outcome {
	cfg := w.pool.cfg
	if w.end == nil || !w.end.Removed {
		if err := cfg.Runtime.ReleasePod(ctx, w.pod); err != nil {
			w.warnOfClaims(ctx, err)
			return w.failed(ctx, trace.SpanFromContext(ctx), fmt.Errorf("give back what the pod held: %w", err), transientDelay)
		}
		cfg.Statuses.SetReleased(w.uid)
		return outcome{}
	}
	ctx, span := w.span(ctx, "pod.finish", cause)
	defer span.End()
	observed, err := w.observe(ctx, cfg.EndObserver)
	if err != nil {
		return w.failed(ctx, span, err, transientDelay)
	}
	if err := inspected(observed); err != nil {
		return w.failed(ctx, span, err, transientDelay)
	}
	if w.left = w.continues(observed); w.left {
		return w.handOver(ctx, span, observed)
	}
	err = cfg.Runtime.CleanUpPod(ctx, w.pod, observed)
	w.lastWrite = cfg.BootTime()
	if err != nil {
		w.warnOfClaims(ctx, err)
		return w.failed(ctx, span, fmt.Errorf("remove what the pod left: %w", err), transientDelay)
	}
	return outcome{input: InputCleaned}
}

// observe returns the observation of the pod after the worker's last write: that of an event if it is new enough, and
// otherwise the observer's answer. The first time it always asks the observer.
func (w *worker) observe(ctx context.Context, observer Observer) (*lifecyclev1.PodStatus, error) {
	cfg := w.pool.cfg
	if known := cfg.Statuses.Observed(w.uid); w.looked && w.newer(known) {
		return known, nil
	}
	w.looking = false
	askCtx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	observed, err := observer.GetPodStatus(askCtx, w.uid, w.lastWrite)
	if err != nil {
		return nil, fmt.Errorf("observe the pod: %w", err)
	}
	w.looked = true
	cfg.Statuses.Observe(w.uid, observed)
	return observed, nil
}

func (w *worker) newer(observed *lifecyclev1.PodStatus) bool {
	return observed != nil && time.Duration(observed.GetObservedBoottimeNs()) > w.lastWrite
}

// inspected fails if pleg could not inspect the pod: the observation is then old, or lacks the ends of containers.
// Nothing irreversible may follow from it.
func inspected(observed *lifecyclev1.PodStatus) error {
	if reason := observed.GetInspectError(); reason != "" {
		return &inspectError{reason}
	}
	return nil
}

// prune removes the ended containers of each name except the newest.
func (w *worker) prune(ctx context.Context, observed *lifecyclev1.PodStatus) error {
	if !hasGarbage(observed) {
		return nil
	}
	w.looking = false
	err := w.pool.cfg.Runtime.PruneContainers(ctx, observed, keepExited)
	w.lastWrite = w.pool.cfg.BootTime()
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("remove ended containers: %w", err)
	}
	return nil
}

// both returns the error if there is only one, and otherwise both in one line.
func both(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// failed returns the outcome of an error. Canceled work has not failed.
func (w *worker) failed(ctx context.Context, span trace.Span, err error, delay time.Duration) outcome {
	if ctx.Err() != nil {
		return cutShort(span)
	}
	telemetry.Fail(span, err)
	class := classify(err)
	w.pool.cfg.Metrics.retried(class)
	if class == failedInspect {
		w.warn(ctx, eventFailedSync, "error determining status: "+err.Error())
	}
	if class == failedAway {
		delay = min(awayDelay<<min(w.away/2, awayDoublings), delay)
		w.away++
	}
	after := w.pool.cfg.Jitter(delay)
	level := slog.LevelWarn
	if w.failedOf(err) {
		level = slog.LevelDebug // it has been logged before
	}
	w.pool.cfg.Logger.Log(ctx, level, "work on a pod failed; it is tried again",
		telemetry.KeyPod, w.fullName.String(), telemetry.KeyPodUID, string(w.uid), telemetry.KeyRetryAfter, after,
		telemetry.KeyError, err)
	return outcome{err: err, after: after, waits: WaitOf(Facts{Failed: err}).For}
}

// Runs reports whether anything of a pod runs: a container that is running or in an unknown state, or a ready sandbox.
func Runs(observed *lifecyclev1.PodStatus) bool {
	for _, c := range observed.GetContainers() {
		if s := c.GetState(); s == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING ||
			s == lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN {
			return true
		}
	}
	for _, s := range observed.GetSandboxes() {
		if s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY {
			return true
		}
	}
	return false
}

// hasGarbage reports whether PruneContainers would remove something: an ended container beyond the kept ones of its
// name, a created container that was never started and has a newer one, or a dead sandbox that is not the newest and
// has no containers.
func hasGarbage(observed *lifecyclev1.PodStatus) bool {
	ended, newer, holds := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, c := range observed.GetContainers() { // newest first
		switch c.GetState() { //nolint:exhaustive // the others are never garbage
		case lifecyclev1.ContainerState_CONTAINER_STATE_EXITED:
			if ended[c.GetName()]++; ended[c.GetName()] > keepExited {
				return true
			}
		case lifecyclev1.ContainerState_CONTAINER_STATE_CREATED:
			if newer[c.GetName()] {
				return true
			}
		}
		newer[c.GetName()], holds[c.GetSandboxId()] = true, true
	}
	for i, s := range observed.GetSandboxes() { // newest first
		if i > 0 && s.GetState() != lifecyclev1.SandboxState_SANDBOX_STATE_READY && !holds[s.GetId()] {
			return true
		}
	}
	return false
}
