package recordcmd

import (
	"testing"

	"google.golang.org/grpc"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
)

// TestLaterServicesAreRecorded has a recorder follow each stream of a later version.
func TestLaterServicesAreRecorded(t *testing.T) {
	streamtest.Later(t, "quartet.config.v1.ConfigService.WatchPodUpdates",
		func(conn *grpc.ClientConn) stream.Source[*configv1.WatchPodUpdatesResponse] {
			return (&clients{configmux: conn}).desired()
		})
	streamtest.Later(t, "quartet.lifecycle.v1.LifecycleService.WatchEvents",
		func(conn *grpc.ClientConn) stream.Source[*lifecyclev1.Event] {
			return (&clients{pleg: conn}).events()
		})
	streamtest.Later(t, "quartet.engine.v1.EngineService.WatchPods",
		func(conn *grpc.ClientConn) stream.Source[*enginev1.Pod] {
			return (&clients{syncloop: conn}).pods()
		})
	streamtest.Later(t, "quartet.engine.v1.EngineService.WatchPodEvents",
		func(conn *grpc.ClientConn) stream.Source[*enginev1.PodEvent] {
			return (&clients{syncloop: conn}).podEvents()
		})
	streamtest.Later(t, "quartet.node.v1.NodeService.WatchNode",
		func(conn *grpc.ClientConn) stream.Source[*nodev1.Node] {
			return (&clients{nodestatus: conn}).nodes()
		})
	streamtest.Later(t, "quartet.node.v1.NodeService.WatchHeartbeats",
		func(conn *grpc.ClientConn) stream.Source[*nodev1.Heartbeat] {
			return (&clients{nodestatus: conn}).heartbeats()
		})
}
