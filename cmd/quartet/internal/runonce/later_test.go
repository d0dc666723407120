package runonce

import (
	"testing"

	"google.golang.org/grpc"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
)

func TestALaterSyncloopIsFollowed(t *testing.T) {
	streamtest.Later(t, "quartet.engine.v1.EngineService.WatchPods", func(conn *grpc.ClientConn) stream.Source[*enginev1.Pod] {
		return podSource(conn)
	})
}
