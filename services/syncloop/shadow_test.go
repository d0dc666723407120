package syncloop

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/service"
	"github.com/quartet-node/quartet/test/fakesite"
	"github.com/quartet-node/quartet/test/harness"
)

// TestAShadowThatHasComparedNothingSaysSo follows a node that is away: no difference is not the same as nothing
// compared, so the exit code is another.
func TestAShadowThatHasComparedNothingSaysSo(t *testing.T) {
	cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, []string{
		"--shadow", "--shadow-for=1s", "--state-dir=" + t.TempDir(), "--hostname-override=away",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = runShadow(t.Context(), cfg, slog.New(slog.DiscardHandler), &out)
	var exit *service.ExitError
	if !errors.As(err, &exit) || exit.Code != 4 {
		t.Errorf("it ends with %v, want the exit code 4", err)
	}
	if !strings.HasPrefix(out.String(), "Nothing was compared: ") {
		t.Errorf("it prints %q, want that nothing was compared", &out)
	}
}

// refusing is a configmux that gives nobody pods.
type refusing struct {
	configv1.UnimplementedConfigServiceServer
}

func (refusing) WatchPodUpdates(
	*configv1.WatchPodUpdatesRequest, grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse],
) error {
	return status.Error(codes.FailedPrecondition, "show the certificate of a node")
}

// podless is a syncloop that runs no pods.
type podless struct {
	enginev1.UnimplementedEngineServiceServer
}

func (podless) WatchPods(
	_ *enginev1.WatchPodsRequest, to grpc.ServerStreamingServer[enginev1.WatchPodsResponse],
) error {
	for _, kind := range []streamv1.Kind{streamv1.Kind_KIND_OPENED, streamv1.Kind_KIND_SYNCED} {
		if err := to.Send(&enginev1.WatchPodsResponse{Frame: &streamv1.Frame{Kind: kind}}); err != nil {
			return err
		}
	}
	<-to.Context().Done()
	return nil
}

func (podless) WatchPodEvents(
	_ *enginev1.WatchPodEventsRequest, to grpc.ServerStreamingServer[enginev1.WatchPodEventsResponse],
) error {
	<-to.Context().Done()
	return nil
}

// TestAShadowThatConfigmuxRefusesEnds on a node of a site, whose configmux it finds by the syncloop that runs.
func TestAShadowThatConfigmuxRefusesEnds(t *testing.T) {
	node, err := layout.New(harness.ShortDir(t))
	if err != nil {
		t.Fatal(err)
	}
	site := fakesite.Serve(t, refusing{})
	site.FollowedBy(t, node.StateDir())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: node.Address(layout.SyncLoop), Health: rpc.NewHealth(), Ready: func() { close(ready) },
			Register: func(server *grpc.Server) { enginev1.RegisterEngineServiceServer(server, podless{}) },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
	cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, []string{
		"--shadow", "--shadow-for=1m", "--state-dir=" + node.StateDir(), "--hostname-override=node-1",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Peers.ConfigMux != site.Address || cfg.TLS != site.Node {
		t.Errorf("the shadow follows %s with %+v, want %s with %+v", cfg.Peers.ConfigMux, cfg.TLS, site.Address, site.Node)
	}
	err = runShadow(t.Context(), cfg, slog.New(slog.DiscardHandler), io.Discard)
	const want = "configmux refuses the stream of pod updates: show the certificate of a node"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("runShadow() error = %v, want an error with %q", err, want)
	}
}
