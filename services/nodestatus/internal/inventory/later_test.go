package inventory

import (
	"testing"

	"google.golang.org/grpc"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
)

func TestALaterSyncloopIsFollowed(t *testing.T) {
	streamtest.Later(t, "quartet.engine.v1.EngineService.WatchStorage", func(conn *grpc.ClientConn) stream.Source[*enginev1.StorageItem] {
		return Source(conn)
	})
}
