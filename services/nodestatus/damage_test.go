package nodestatus

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/test/damage"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// TestTheNodeIsReadyWhateverHappenedToItsFiles damages each file of the state directory in each way.
func TestTheNodeIsReadyWhateverHappenedToItsFiles(t *testing.T) {
	cfg := config(t)
	servePeers(t, cfg)
	nodes := client(t, cfg)
	answers := func(logger *slog.Logger) {
		stop := background(t, func(ctx context.Context) error { return run(ctx, cfg, logger, telemetry.Off()) })
		eventually.That(t, "the Node is ready", func() bool {
			answer, err := nodes.GetNode(t.Context(), &nodev1.GetNodeRequest{})
			var node v1.Node
			return err == nil && node.Unmarshal(answer.GetNode().GetNode()) == nil &&
				slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
					return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
				})
		})
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	answers(quiet)
	known := []string{"nodestatus.json", "nodestatus.lock"}
	damage.Each(t, cfg.StateDir, known, func(t *testing.T, file string, kind damage.Kind) {
		var log logbuffer.Buffer
		answers(slog.New(slog.NewTextHandler(&log, nil)))
		if kind.Shows && filepath.Ext(file) != ".lock" && !strings.Contains(log.String(), file) {
			t.Errorf("nothing is said of %s: %s", file, log.String())
		}
	})
}
