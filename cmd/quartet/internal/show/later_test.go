package show

import (
	"testing"

	"google.golang.org/grpc"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
)

// TestLaterServicesAreFollowed has the command line follow each stream of a later version.
func TestLaterServicesAreFollowed(t *testing.T) {
	streamtest.Later(t, "quartet.engine.v1.EngineService.WatchPods", func(conn *grpc.ClientConn) stream.Source[*enginev1.Pod] {
		return podSource(conn)
	})
	streamtest.Later(t, "quartet.engine.v1.EngineService.WatchPodEvents", func(conn *grpc.ClientConn) stream.Source[*enginev1.PodEvent] {
		return podEventSource(conn)
	})
	streamtest.Later(t, "quartet.node.v1.NodeService.WatchNodeEvents", func(conn *grpc.ClientConn) stream.Source[*enginev1.PodEvent] {
		return nodeEventSource(conn)
	})
	streamtest.Later(t, "quartet.node.v1.NodeService.WatchNode", func(conn *grpc.ClientConn) stream.Source[*nodev1.Node] {
		return nodeSource(conn)
	})
	streamtest.Later(t, "quartet.lifecycle.v1.LifecycleService.WatchEvents", func(conn *grpc.ClientConn) stream.Source[*lifecyclev1.Event] {
		return eventSource(conn)
	})
	streamtest.Later(t, "quartet.config.v1.ConfigService.WatchPodUpdates", func(conn *grpc.ClientConn) stream.Source[podUpdates] {
		return updateSource(conn, updateMode(""))
	})
}
