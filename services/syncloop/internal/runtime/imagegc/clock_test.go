package imagegc

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// usedNow says that each image was just used.
type usedNow struct{}

func (usedNow) UsedAt(string) time.Time       { return time.Now() }
func (usedNow) Retire(string, time.Time) bool { return true }

// TestAgesOfImagesAreNotOfAClockThatCanBeSet checks that the times which imageMinimumGCAge and imageMaximumGCAge are
// compared with have a reading of the monotonic clock, which Go then compares. A wall clock that jumps removes no
// image.
func TestAgesOfImagesAreNotOfAClockThatCanBeSet(t *testing.T) {
	fake := fakecri.New(t)
	fake.AddImage("image", 100)
	runtime, tracer := harness.ConnectCRI(t.Context(), t, fake.Endpoint()), telemetry.Off()
	c := New(Config{
		Runtime: runtime.Client.Runtime, Images: runtime.Client.Images, Uses: usedNow{},
		Policy: Policy{HighPercent: highOff, MinAge: time.Minute, MaxAge: time.Hour},
		Usage:  func(string) (Usage, error) { return Usage{Capacity: 1000, Available: 1000}, nil },
		Clock:  clock.RealClock{}, Tracer: tracer, Calls: cri.NewCaller(tracer, fake.Endpoint()),
		Logger: slog.New(slog.DiscardHandler),
	})
	c.Round(t.Context())
	if len(c.known) != 1 {
		t.Fatalf("images %v, want one", c.known)
	}
	for _, image := range c.known {
		for what, at := range map[string]time.Time{
			"first seen": image.firstSeen, "last used": image.lastUsed, "observed since": c.began,
		} {
			if !strings.Contains(at.String(), " m=") {
				t.Errorf("%s %v, without a monotonic reading", what, at)
			}
		}
	}
}
