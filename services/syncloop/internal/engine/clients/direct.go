package clients

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// plegPatience is how long a pod that is ending waits for pleg. A restarted pleg is back well within it.
	plegPatience = 2 * time.Second
	// plegSilence is how long the runtime is asked without asking pleg first, after pleg has not answered.
	plegSilence = 10 * time.Second
)

// Observer observes pods; *PLEG implements it.
type Observer interface {
	GetPodStatus(ctx context.Context, uid types.UID, newerThan time.Duration) (*lifecyclev1.PodStatus, error)
}

// Direct observes pods that are ending. It asks pleg, and the runtime itself while pleg does not answer, so that a pleg
// that hangs keeps no deleted or evicted pod running.
type Direct struct {
	// PLEG is asked first.
	PLEG Observer
	// Runtime returns the connected runtime. It fails if there is none.
	Runtime func() (internalapi.RuntimeService, error)
	Clock   clock.PassiveClock
	// BootTime returns the clock of observations.
	BootTime func() time.Duration
	Logger   *slog.Logger

	mu sync.Mutex
	// silentUntil is the time until which pleg is not asked.
	silentUntil time.Duration
}

// GetPodStatus returns the state of a pod by an inspection that began after newerThan. Its error is pleg's, or that of
// the runtime if pleg does not answer.
func (d *Direct) GetPodStatus(
	ctx context.Context, uid types.UID, newerThan time.Duration,
) (*lifecyclev1.PodStatus, error) {
	if !d.silent() {
		observed, err := d.askPLEG(ctx, uid, newerThan)
		if err == nil || ctx.Err() != nil || !unanswered(err) {
			return observed, err
		}
		d.noteSilence(ctx, err)
	}
	runtime, err := d.Runtime()
	if err != nil {
		return nil, err
	}
	observed, err := inspection.Pod(ctx, runtime, string(uid), d.BootTime(), d.Clock.Now(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the runtime for the pod, because pleg does not answer: %w", err)
	}
	return observed, nil
}

func (d *Direct) askPLEG(ctx context.Context, uid types.UID, newerThan time.Duration) (*lifecyclev1.PodStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, plegPatience)
	defer cancel()
	return d.PLEG.GetPodStatus(ctx, uid, newerThan)
}

func (d *Direct) silent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.BootTime() < d.silentUntil
}

func (d *Direct) noteSilence(ctx context.Context, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.BootTime() >= d.silentUntil { // not for each of the pods that have waited at the same time
		d.Logger.WarnContext(ctx, "pleg does not answer; the runtime itself is asked for pods that are ending",
			telemetry.KeyError, err)
	}
	d.silentUntil = d.BootTime() + plegSilence
}

// unanswered reports whether a call failed without an answer of the server.
func unanswered(err error) bool {
	switch status.Code(err) { //nolint:exhaustive // every other code is an answer
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	default:
		return false
	}
}
