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
	// settleDelay is how long a worker waits, after its own write, for pleg to tell what has come of it before it asks:
	// long enough for the runtime's event and the inspection it brings, short enough that a pod whose event was missed is
	// Ready before a person notices.
	settleDelay = 100 * time.Millisecond
	// transientDelay is the mean time to the next try after an error that is likely to pass.
	transientDelay = 10 * time.Second
	// awayDelay is the mean time to the next try when the runtime or pleg was away: a service that is restarted is back
	// within a second. It doubles with every second failure in a row, at most awayDoublings times.
	awayDelay     = 500 * time.Millisecond
	awayDoublings = 6
	// killAgainDelay is how long a worker waits when a kill went well and pleg still sees something running.
	killAgainDelay = time.Second
	// observeTimeout bounds a question to pleg; a pleg that is being restarted is back well within it.
	observeTimeout = 10 * time.Second
	// delayJitter spreads retries, so that pods that failed together do not try together.
	delayJitter = 0.5
	// keepExited is how many ended containers are kept for each name: the last one, for its logs and its exit code.
	keepExited = 1
)

// outcome is what a piece of work came to.
type outcome struct {
	// input moves the pod on; 0 when it stays where it is.
	input Input
	// err is what failed.
	err error
	// after is when to work again if nothing happens before; 0 for never.
	after time.Duration
	// waits is what the pod waits for until then, in a few words; empty for nothing.
	waits string
	// unfinished is true when the worker is to come back to this work although nothing failed.
	unfinished bool
	// skipped is true when there was nothing to be done yet.
	skipped bool
}

// sync makes the runtime match the pod.
func (w *worker) sync(ctx context.Context, cause Cause) outcome {
	cfg := w.pool.cfg
	if cause.Kind == CauseSeen && !w.newer(cfg.Statuses.Observed(w.uid)) {
		return outcome{after: settleDelay, skipped: true}
	}
	ctx, span := w.span(ctx, "pod.sync", cause)
	defer span.End()
	begun := cfg.Clock.Now()
	w.takeOver()
	observed, err := w.observe(ctx)
	if err == nil {
		err = inspected(observed)
	}
	if err != nil {
		return w.failed(ctx, span, err, transientDelay)
	}
	w.measureStart(begun, observed)
	w.resizing(ctx, observed)
	if phase := cfg.Statuses.Phase(w.uid); phase == v1.PodSucceeded || phase == v1.PodFailed {
		cfg.Logger.InfoContext(ctx, "pod has run to its end", telemetry.KeyPod, w.fullName.String(), telemetry.KeyPhase, string(phase))
		return outcome{input: InputFinished}
	}
	if err := w.networkFor(observed); err != nil {
		w.warn(ctx, podstatus.ReasonNoNetwork, err.Error())
		cfg.Statuses.Synced(w.uid, SyncReport{Waits: true, Wait: WaitOf(Facts{Sandbox: err}).Reason})
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
		Waits: err == nil || result.Reasons != nil || result.SandboxError != nil,
		Wait:  WaitOf(facts).Reason, Reasons: result.Reasons, Cgroup: result.Cgroup,
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
	if !isAway(err) { // also when the sync failed: one container may crash for weeks while the image of another cannot be had
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
	out := outcome{after: cfg.Jitter(cfg.Resync), unfinished: result.Wrote || result.RetryAfter > 0, waits: WaitOf(facts).For}
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

// delayAfter is the mean time to the next try of a sync that failed. What the runtime or the kernel has refused may well pass,
// and so may the runtime's absence; what is wrong with the pod itself does not.
func (w *worker) delayAfter(err error) time.Duration {
	if refused(err) || classify(err).passes {
		return min(transientDelay, w.pool.cfg.Resync)
	}
	return w.pool.cfg.Resync
}

// terminate stops what runs of the pod, and moves on when pleg sees nothing running after the last write.
func (w *worker) terminate(ctx context.Context, cause Cause) outcome {
	cfg := w.pool.cfg
	ctx, span := w.span(ctx, "pod.terminate", cause)
	defer span.End()
	for killed := false; ; killed = true {
		observed, err := w.observe(ctx)
		if err != nil {
			return w.failed(ctx, span, err, transientDelay)
		}
		if !Runs(observed) {
			if err := inspected(observed); err != nil {
				return w.failed(ctx, span, err, transientDelay)
			}
			if err := cfg.Endings.Forget(w.uid); err != nil {
				cfg.Logger.WarnContext(ctx, "the file that says how long a pod had to end cannot be removed", telemetry.KeyPod, w.fullName.String(), telemetry.KeyError, err)
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

// graceLeft returns how many seconds the containers have to stop: what is left of an end that was asked for, also of a process
// before this one, or the whole of it for a pod that ran to its end by itself.
func (w *worker) graceLeft(ctx context.Context) int64 {
	grace := GraceOf(w.pod, w.end)
	if w.end == nil {
		return grace
	}
	left, err := w.pool.cfg.Endings.Left(w.uid, grace)
	if err != nil {
		w.pool.cfg.Logger.WarnContext(ctx, "should syncloop be killed before the pod has ended, the next one gives it its whole grace period again",
			telemetry.KeyPod, w.fullName.String(), telemetry.KeyError, err)
	}
	return left
}

// cleanUp removes what a pod left that no source names any more. A pod that is still named keeps its ended containers:
// they say that it must not be started again, until package containergc finds that they need not. Only what it held of the machine is given back.
func (w *worker) cleanUp(ctx context.Context, cause Cause) outcome {
	cfg := w.pool.cfg
	if w.end == nil || !w.end.Removed {
		if err := cfg.Runtime.ReleasePod(ctx, w.pod); err != nil {
			return w.failed(ctx, trace.SpanFromContext(ctx), fmt.Errorf("give back what the pod held: %w", err), transientDelay)
		}
		cfg.Statuses.SetReleased(w.uid)
		return outcome{}
	}
	ctx, span := w.span(ctx, "pod.finish", cause)
	defer span.End()
	observed, err := w.observe(ctx)
	if err != nil {
		return w.failed(ctx, span, err, transientDelay)
	}
	if err := inspected(observed); err != nil {
		return w.failed(ctx, span, err, transientDelay)
	}
	err = cfg.Runtime.CleanUpPod(ctx, w.pod, observed)
	w.lastWrite = cfg.BootTime()
	if err != nil {
		return w.failed(ctx, span, fmt.Errorf("remove what the pod left: %w", err), transientDelay)
	}
	return outcome{input: InputCleaned}
}

// observe returns what pleg observed of the pod after the worker's last write: what came with an event when that is
// new enough, else pleg's answer. The first time pleg is always asked.
func (w *worker) observe(ctx context.Context) (*lifecyclev1.PodStatus, error) {
	cfg := w.pool.cfg
	if known := cfg.Statuses.Observed(w.uid); w.looked && w.newer(known) {
		return known, nil
	}
	w.looking = false
	askCtx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	observed, err := cfg.Observer.GetPodStatus(askCtx, w.uid, w.lastWrite)
	if err != nil {
		return nil, fmt.Errorf("ask pleg for the pod: %w", err)
	}
	w.looked = true
	cfg.Statuses.Observe(w.uid, observed)
	return observed, nil
}

func (w *worker) newer(observed *lifecyclev1.PodStatus) bool {
	return observed != nil && time.Duration(observed.GetObservedBoottimeNs()) > w.lastWrite
}

// inspected fails when pleg could not look at a pod: what it knows of it then is old, or lacks how containers ended.
// Nothing that cannot be taken back follows from it.
func inspected(observed *lifecyclev1.PodStatus) error {
	if reason := observed.GetInspectError(); reason != "" {
		return &inspectError{reason}
	}
	return nil
}

// prune removes the ended containers of each name but the newest.
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

// both returns the error of two that there is, or one of both in a line.
func both(a, b error) error {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	return fmt.Errorf("%w; %w", a, b)
}

// failed makes an outcome of an error. An error of work that was cut short is none.
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
		level = slog.LevelDebug // it has been told
	}
	w.pool.cfg.Logger.Log(ctx, level, "work on a pod failed; it is tried again",
		telemetry.KeyPod, w.fullName.String(), telemetry.KeyPodUID, string(w.uid), telemetry.KeyRetryAfter, after, telemetry.KeyError, err)
	return outcome{err: err, after: after, waits: WaitOf(Facts{Failed: err}).For}
}

// Runs tells whether anything of a pod runs: a container that does, or of which the runtime cannot tell, or a sandbox.
func Runs(observed *lifecyclev1.PodStatus) bool {
	for _, c := range observed.GetContainers() {
		if s := c.GetState(); s == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING || s == lifecyclev1.ContainerState_CONTAINER_STATE_UNKNOWN {
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

// hasGarbage tells whether a pod has what PruneContainers removes: more ended containers of a name than are kept, one that
// was created and never started when a newer one is there, a dead sandbox that is not the newest and holds nothing.
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
