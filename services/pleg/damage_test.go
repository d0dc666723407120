package pleg

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/test/damage"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestPLEGServesWhateverHappenedToItsFiles damages each file of the state directory in each way.
func TestPLEGServesWhateverHappenedToItsFiles(t *testing.T) {
	r := newRig(t, fakecri.New(t).Endpoint())
	answers := func(logger *slog.Logger) {
		r.runLogging(logger)
		eventually.That(t, "pleg answers", func() bool { // it refuses until its first relist
			_, err := r.client.ListPodStatuses(r.ctx(), &lifecyclev1.ListPodStatusesRequest{}, grpc.WaitForReady(true))
			return err == nil
		})
		r.stop()
	}
	answers(slog.New(slog.DiscardHandler))
	damage.Each(t, r.cfg.StateDir, []string{"pleg-told", "pleg.lock"}, func(t *testing.T, file string, kind damage.Kind) {
		var log logbuffer.Buffer
		answers(slog.New(slog.NewTextHandler(&log, nil)))
		if kind.Shows && filepath.Base(file) != "pleg.lock" && !strings.Contains(log.String(), file) {
			t.Errorf("nothing is said of %s: %s", file, log.String())
		}
	})
}
