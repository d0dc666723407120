// Package volumelimits rejects pods for whose volumes a CSI driver has no place on this node, as a kubelet does. The
// scheduler counts volumes, but its count may be behind, because volumes are also attached by others.
package volumelimits

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// period is how often the pods are looked at. A pod has waited for two minutes before.
const period = 5 * time.Second

// Config configures Run. All fields are required.
type Config struct {
	// Rejected returns the pods to reject.
	Rejected func() []volumes.Rejection
	// Reject ends a pod for good, with a reason and a message.
	Reject func(ctx context.Context, uid types.UID, reason, message string) error
	// Count counts a rejection.
	Count func(reason string)
	// Refresh asks a driver for its limit again.
	Refresh func(driver string)
	Clock   clock.WithTicker
	Logger  *slog.Logger
}

// Run rejects pods until ctx ends, and returns its error.
func Run(ctx context.Context, cfg Config) error {
	ticker := cfg.Clock.NewTicker(period)
	defer ticker.Stop()
	rejected := map[types.UID]bool{} // those that have not ended yet
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
		before := rejected
		rejected = map[types.UID]bool{}
		for _, r := range cfg.Rejected() {
			if before[r.Pod.UID] || cfg.reject(ctx, r) {
				rejected[r.Pod.UID] = true
			}
		}
	}
}

// reject rejects a pod, and reports whether it could. Otherwise the next look tries again.
func (cfg Config) reject(ctx context.Context, r volumes.Rejection) bool {
	attrs := []any{
		telemetry.KeyPod, r.Pod.Namespace + "/" + r.Pod.Name, telemetry.KeyPodUID, string(r.Pod.UID),
		telemetry.KeyReason, r.Reason,
	}
	for _, driver := range r.Drivers {
		cfg.Refresh(driver)
	}
	if err := cfg.Reject(ctx, r.Pod.UID, r.Reason, r.Message); err != nil {
		cfg.Logger.ErrorContext(ctx, "a pod cannot be rejected; retrying", append(attrs, telemetry.KeyError, err)...)
		return false
	}
	cfg.Count(r.Reason)
	cfg.Logger.WarnContext(ctx, "a pod is rejected, because a CSI driver has no place for its volumes", attrs...)
	return true
}
