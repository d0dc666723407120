package volumelimits_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/node/volumelimits"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// TestAPodIsRejectedOnce checks that a rejection that fails is retried, and that a pod that has not ended yet is not
// rejected again.
func TestAPodIsRejectedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done []string
		full := errors.New("the disk is full")
		cfg := volumelimits.Config{
			Rejected: func() []volumes.Rejection {
				return []volumes.Rejection{{
					Pod:    &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}},
					Reason: "R", Message: "m", Drivers: []string{"d1", "d2"},
				}}
			},
			Reject: func(_ context.Context, uid types.UID, reason, message string) error {
				done = append(done, "reject "+string(uid)+" "+reason+" "+message)
				err := full
				full = nil
				return err
			},
			Count:   func(reason string) { done = append(done, "count "+reason) },
			Refresh: func(driver string) { done = append(done, "refresh "+driver) },
			Clock:   clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- volumelimits.Run(ctx, cfg) }()
		time.Sleep(time.Minute) // the clock of the bubble
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		want := []string{
			"refresh d1", "refresh d2", "reject u1 R m", "refresh d1", "refresh d2", "reject u1 R m", "count R",
		}
		if !slices.Equal(done, want) {
			t.Errorf("got %q", done)
		}
	})
}
