// Package runtimeevents listens to the runtime's container events. An event is only a hint to inspect a pod: package
// relist inspects, and writes the record. So an old, repeated or wrong event costs at most one inspection, and a
// thousand events of one pod cost two.
//
// While events arrive, full relists are rare; without a stream they are due every second. Package relist detects
// whether a stream misses changes, and requests a new one if so.
package runtimeevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// maxFailures is the number of consecutive failed streams after which events are given up for a while.
	maxFailures = 5
	// retryLater is the duration of that while.
	retryLater = 5 * time.Minute
	// confirm is how long an idle stream must stay open to count as established: gRPC does not report that a runtime has
	// accepted it, but a runtime without events refuses it at once. Each previous failure doubles it.
	confirm = time.Second
	// steady is how long a stream must have been open for its end not to count as a failure.
	steady = time.Minute
	// backoffMin and backoffMax bound the pause between failed streams.
	backoffMin = 100 * time.Millisecond
	backoffMax = 5 * time.Second
)

// errUnreliable ends a stream that has missed a change.
var errUnreliable = errors.New("a pod has changed and no event has said so")

// Relister receives the hints. Its methods do not block, because a runtime may block while its events are not received.
// Times are the runtime's; zero if unknown.
type Relister interface {
	// Heard reports the arrival of an event.
	Heard(at time.Time)
	// Hint reports a change of the pod with a UID.
	Hint(uid string, at time.Time)
	// HintCreated reports that a sandbox was created or started for the pod with a UID, or a container was created and not
	// started yet.
	HintCreated(uid string, at time.Time)
	// HintRemoved reports that the sandbox or container with an ID was removed; uid is empty if the pod is unknown.
	HintRemoved(uid, id string, at time.Time)
	// HintAny reports a change of the pod with the sandbox or container of an ID.
	HintAny(id string, at time.Time)
	// SetEvented reports whether there is a stream of events.
	SetEvented(evented bool)
	// Unreliable signals that the stream has missed a change.
	Unreliable() <-chan struct{}
}

// Config holds the parameters of Run.
type Config struct {
	// Events opens a stream and passes its events to handle until it ends, as cri.Client.Events does.
	Events func(ctx context.Context, opened func(), handle func(*runtimeapi.ContainerEventResponse)) error
	// Relister receives the hints.
	Relister Relister
	// Clock times the retries.
	Clock clock.WithTicker
	// Logger logs for the operator.
	Logger *slog.Logger
	// Metrics counts streams and events.
	Metrics *Metrics
}

// Run listens until ctx ends, and then returns nil.
func Run(ctx context.Context, cfg Config) error {
	ctx = cri.Quiet(ctx)
	failures := 0
	backoff := newBackoff()
	for {
		lasted, err := listen(ctx, cfg, failures)
		if ctx.Err() != nil {
			return nil
		}
		cfg.Metrics.failed.Inc()
		pause := time.Duration(0)
		switch {
		case status.Code(err) == codes.Unimplemented:
			failures, backoff, pause = 0, newBackoff(), retryLater
			cfg.Logger.Info("the runtime has no container events, relisting every second", telemetry.KeyRetryAfter, pause)
		case lasted:
			failures, backoff = 0, newBackoff()
			pause = backoff.Step()
			cfg.Logger.Warn("the runtime's event stream ended, relisting every second until it is back", telemetry.KeyError, err)
		default:
			failures++
			pause = backoff.Step()
			if failures >= maxFailures {
				failures, backoff, pause = 0, newBackoff(), retryLater
				cfg.Logger.Warn(
					fmt.Sprintf("the runtime's event stream failed %d times in a row, relisting every second", maxFailures),
					telemetry.KeyError,
					err,
					telemetry.KeyRetryAfter,
					pause,
				)
			}
		}
		if !sleep(ctx, cfg.Clock, pause) {
			return nil
		}
	}
}

// sleep waits, and reports whether it has waited to the end before ctx ended.
func sleep(ctx context.Context, clock clock.Clock, d time.Duration) bool {
	timer := clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: backoffMin, Factor: 2, Jitter: 0.2, Steps: 1 << 30, Cap: backoffMax}
}

// listen runs one stream until it ends. failures is the number of consecutive failures before. It reports whether the
// stream was steady.
func listen(ctx context.Context, cfg Config, failures int) (lasted bool, err error) {
	select {
	case <-cfg.Relister.Unreliable():
		// The signal was about the previous stream.
	default:
	}
	link := &link{cfg: cfg}
	ctx, cancel := context.WithCancelCause(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel(nil)
	opened := func() {
		link.opened()
		waiting.Go(func() {
			if sleep(ctx, cfg.Clock, confirm<<failures) {
				link.gain()
			}
		})
		waiting.Go(func() {
			select {
			case <-cfg.Relister.Unreliable():
				cancel(errUnreliable)
			case <-ctx.Done():
			}
		})
	}
	err = cfg.Events(ctx, opened, func(event *runtimeapi.ContainerEventResponse) {
		if failures == 0 {
			link.gain()
		}
		give(cfg, event)
	})
	if cause := context.Cause(ctx); errors.Is(cause, errUnreliable) {
		err = cause
	}
	return link.lose(), err
}

// give passes an event to the relister.
func give(cfg Config, event *runtimeapi.ContainerEventResponse) {
	at := TimeOf(event)
	cfg.Metrics.event(at, cfg.Clock.Now())
	Hint(cfg.Relister, event, at)
}

// TimeOf returns when the runtime created an event; zero if unknown.
func TimeOf(event *runtimeapi.ContainerEventResponse) time.Time {
	if event.GetCreatedAt() <= 0 {
		return time.Time{}
	}
	return time.Unix(0, event.GetCreatedAt())
}

// Hint gives an event that the runtime created at a time, or zero if unknown, to a relister.
func Hint(relister Relister, event *runtimeapi.ContainerEventResponse, at time.Time) {
	relister.Heard(at)
	// A runtime that has lost the sandbox sends no status, or an empty one.
	labels := event.GetPodSandboxStatus().GetLabels()
	uid, kind := labels[podlabels.PodUID], event.GetContainerEventType()
	switch {
	case uid == "" && len(labels) > 0:
		// A sandbox without a pod UID belongs to another program.
	case kind == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		relister.HintRemoved(uid, event.GetContainerId(), at)
	case uid == "":
		relister.HintAny(event.GetContainerId(), at)
	case kind == runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, startsSandbox(event):
		relister.HintCreated(uid, at)
	default:
		relister.Hint(uid, at)
	}
}

// startsSandbox reports whether an event is the start of a sandbox, which has the sandbox's ID in the place of a
// container's.
func startsSandbox(event *runtimeapi.ContainerEventResponse) bool {
	return event.GetContainerEventType() == runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT &&
		event.GetContainerId() == event.GetPodSandboxStatus().GetId()
}

// link is one stream and its state.
type link struct {
	cfg Config

	mu     sync.Mutex
	since  time.Time
	gained bool
	lost   bool
}

func (l *link) opened() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = l.cfg.Clock.Now()
}

func (l *link) gain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gained || l.lost {
		return
	}
	l.gained = true
	l.cfg.Metrics.connected.Inc()
	l.cfg.Logger.Info("container events arrive; full relists are rare while the events are reliable")
	l.cfg.Relister.SetEvented(true)
}

// lose records the end of the stream, and reports whether the stream was steady.
func (l *link) lose() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
	if l.gained {
		l.cfg.Relister.SetEvented(false)
	}
	return l.gained && l.cfg.Clock.Since(l.since) >= steady
}
