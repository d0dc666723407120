package nodestatus

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// TestHealthNamesThePeerThatIsAway: the loss and the return of each peer show in its own health service within seconds.
func TestHealthNamesThePeerThatIsAway(t *testing.T) {
	cfg := config(t)
	becomes := lacking(t, cfg)
	background(t, func(ctx context.Context) error { return run(ctx, cfg, quiet, telemetry.Off()) })
	becomes("alone", "pleg", "syncloop")
	stopPLEG, stopSyncLoop := servePLEG(t, cfg), serveSyncLoop(t, cfg)
	becomes("with both")
	if err := stopPLEG(); err != nil {
		t.Error(err)
	}
	becomes("without pleg", "pleg")
	servePLEG(t, cfg)
	becomes("with pleg again")
	if err := stopSyncLoop(); err != nil {
		t.Error(err)
	}
	becomes("without syncloop", "syncloop")
	serveSyncLoop(t, cfg)
	becomes("with syncloop again")
}

// lacking returns a function that waits until the health of nodestatus waits for exactly the given peers.
func lacking(t *testing.T, cfg nodeconfig.Config) func(when string, want ...string) {
	t.Helper()
	conn, err := rpc.Dial(cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(when string, want ...string) {
		t.Helper()
		var names []string
		for end := time.Now().Add(60 * time.Second); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			got, err := grpc_health_v1.NewHealthClient(conn).List(ctx, &grpc_health_v1.HealthListRequest{})
			cancel()
			names = nil
			for name, health := range got.GetStatuses() {
				if health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			// The process, its two peers and the machine, and the port of the node's health if there is one.
			if err == nil && len(got.GetStatuses()) >= 4 && slices.Equal(names, want) {
				return
			}
		}
		t.Fatalf("%s it waits for %q, want %q", when, names, want)
	}
}
