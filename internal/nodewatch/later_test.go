package nodewatch_test

import (
	"testing"

	"google.golang.org/grpc"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/nodewatch"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
)

func TestALaterNodestatusIsFollowed(t *testing.T) {
	streamtest.Later(t, "quartet.node.v1.NodeService.WatchNode", func(conn *grpc.ClientConn) stream.Source[*nodev1.Node] {
		return nodewatch.Source(nodev1.NewNodeServiceClient(conn))
	})
}
