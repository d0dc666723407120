// Package hints listens to the runtime's container events. An event is only a hint that a pod is worth a look: package
// relist looks, and writes. So a stale event, a repeated one or one that lies costs a look at most, and a thousand of
// one pod cost two.
//
// While events flow relist may look at everything rarely; when the stream is away, or has never been, it looks every second.
package hints

import (
	"context"
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
	// maxFailures is how many streams in a row may fail before events are given up for a while.
	maxFailures = 5
	// retryLater is for how long.
	retryLater = 5 * time.Minute
	// confirm is how long a stream has to stay up, without a word, to be relied on: gRPC does not tell that a runtime has
	// accepted it, but one that has no events says so at once.
	confirm = time.Second
	// backoffMin and backoffMax separate streams that fail.
	backoffMin = 100 * time.Millisecond
	backoffMax = 5 * time.Second
)

// Relister is what hints are given to. None of its methods waits.
type Relister interface {
	// Hint says that something has happened to the pod with a UID.
	Hint(uid string, at time.Time)
	// HintAny says that something has happened to the pod that has a sandbox or container with an id.
	HintAny(id string, at time.Time)
	// SetEvented says whether hints can be relied on.
	SetEvented(evented bool)
}

// Config is what a Listener works with.
type Config struct {
	// Events opens a stream and hands over its events until it ends, as cri.Client.Events does.
	Events func(ctx context.Context, opened func(), handle func(*runtimeapi.ContainerEventResponse)) error
	// Relister gets the hints.
	Relister Relister
	// Clock times the tries.
	Clock clock.WithTicker
	// Logger gets what an operator should know.
	Logger *slog.Logger
	// Metrics counts.
	Metrics *Metrics
}

// Run listens until ctx ends; it returns nil then.
func Run(ctx context.Context, cfg Config) error {
	ctx = cri.Quiet(ctx)
	failures := 0
	backoff := newBackoff()
	for {
		lasted, err := listen(ctx, cfg)
		if ctx.Err() != nil {
			return nil
		}
		cfg.Metrics.failed.Inc()
		pause := time.Duration(0)
		switch {
		case lasted:
			failures, backoff = 0, newBackoff()
			pause = backoff.Step()
			cfg.Logger.Warn("the runtime's event stream ended, relisting every second until it is back", telemetry.KeyError, err)
		case status.Code(err) == codes.Unimplemented:
			pause = retryLater
			cfg.Logger.Info("the runtime has no container events, relisting every second", telemetry.KeyRetryAfter, pause)
		default:
			failures++
			pause = backoff.Step()
			if failures >= maxFailures {
				failures, backoff, pause = 0, newBackoff(), retryLater
				cfg.Logger.Warn(fmt.Sprintf("the runtime's event stream failed %d times in a row, relisting every second", maxFailures),
					telemetry.KeyError, err, telemetry.KeyRetryAfter, pause)
			}
		}
		if !sleep(ctx, cfg.Clock, pause) {
			return nil
		}
	}
}

// sleep waits, and tells whether ctx has let it wait to the end.
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

// listen runs one stream to its end, and tells whether it could be relied on for a while.
func listen(ctx context.Context, cfg Config) (lasted bool, err error) {
	trust := &trust{cfg: cfg}
	ctx, cancel := context.WithCancel(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	opened := func() {
		waiting.Go(func() {
			if sleep(ctx, cfg.Clock, confirm) {
				trust.gain()
			}
		})
	}
	err = cfg.Events(ctx, opened, func(event *runtimeapi.ContainerEventResponse) {
		trust.gain()
		give(cfg, event)
	})
	return trust.lose(), err
}

// give tells the relister about an event.
func give(cfg Config, event *runtimeapi.ContainerEventResponse) {
	var at time.Time
	if event.GetCreatedAt() > 0 {
		at = time.Unix(0, event.GetCreatedAt())
	}
	cfg.Metrics.event(at, cfg.Clock.Now())
	sandbox := event.GetPodSandboxStatus()
	switch uid := sandbox.GetLabels()[podlabels.PodUID]; {
	case uid != "":
		cfg.Relister.Hint(uid, at)
	case sandbox == nil:
		cfg.Relister.HintAny(event.GetContainerId(), at)
	default:
		// A sandbox without a pod's UID is not ours.
	}
}

// trust is whether one stream can be relied on.
type trust struct {
	cfg Config

	mu     sync.Mutex
	gained bool
	lost   bool
}

func (t *trust) gain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gained || t.lost {
		return
	}
	t.gained = true
	t.cfg.Metrics.connected.Inc()
	t.cfg.Logger.Info("container events flow, full relists are rare from now on")
	t.cfg.Relister.SetEvented(true)
}

// lose ends the trust and tells whether there was any.
func (t *trust) lose() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = true
	if t.gained {
		t.cfg.Relister.SetEvented(false)
	}
	return t.gained
}
