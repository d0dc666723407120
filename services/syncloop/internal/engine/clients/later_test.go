package clients_test

import (
	"testing"

	"google.golang.org/grpc"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

func TestALaterConfigmuxIsFollowed(t *testing.T) {
	streamtest.Later(t, "quartet.config.v1.ConfigService.WatchPodUpdates", func(conn *grpc.ClientConn) stream.Source[*loop.Desired] {
		return clients.ConfigMux(configv1.NewConfigServiceClient(conn))
	})
	streamtest.Later(t, "quartet.config.v1.ConfigService.WatchObjects", func(conn *grpc.ClientConn) stream.Source[*configobjects.Entry] {
		return clients.Objects(configv1.NewConfigServiceClient(conn))
	})
}

func TestALaterPLEGIsFollowed(t *testing.T) {
	streamtest.Later(t, "quartet.lifecycle.v1.LifecycleService.WatchEvents", func(conn *grpc.ClientConn) stream.Source[*lifecyclev1.Event] {
		return clients.NewPLEG(lifecyclev1.NewLifecycleServiceClient(conn), 0).Events()
	})
}

func TestALaterSyncloopIsFollowed(t *testing.T) {
	streamtest.Later(t, "quartet.engine.v1.EngineService.WatchPods", func(conn *grpc.ClientConn) stream.Source[*enginev1.Pod] {
		return clients.Pods(enginev1.NewEngineServiceClient(conn))
	})
	streamtest.Later(t, "quartet.engine.v1.EngineService.WatchPodEvents", func(conn *grpc.ClientConn) stream.Source[*enginev1.PodEvent] {
		return clients.PodEvents(enginev1.NewEngineServiceClient(conn))
	})
}
