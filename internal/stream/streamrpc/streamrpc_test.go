package streamrpc_test

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformanceOverAUnixSocket(t *testing.T) {
	streamtest.Run(t, func(t *testing.T) streamtest.Transport {
		w := &wire{address: "unix://" + filepath.Join(t.TempDir(), "s.sock")}
		conn, err := rpc.Dial(w.address)
		if err != nil {
			t.Fatal(err)
		}
		w.client = configv1.NewConfigServiceClient(conn)
		t.Cleanup(func() {
			w.stop(t)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
		return w
	})
}

// wire serves a publisher of texts as the names of sources, which are valid messages.
type wire struct {
	address string
	client  configv1.ConfigServiceClient
	cancel  context.CancelFunc
	done    chan error
}

func (w *wire) stop(t *testing.T) {
	t.Helper()
	if w.cancel == nil {
		return
	}
	w.cancel()
	if err := <-w.done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func (w *wire) Serve(t *testing.T, src stream.Source[string]) {
	t.Helper()
	w.stop(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w.cancel, w.done = cancel, make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		w.done <- rpc.Serve(ctx, rpc.Config{
			Address: w.address, Health: rpc.NewHealth(),
			Register: func(s *grpc.Server) { configv1.RegisterConfigServiceServer(s, &server{src: src}) },
			Ready:    func() { close(ready) },
		})
	}()
	select {
	case <-ready:
	case err := <-w.done:
		t.Fatalf("serve: %v", err)
	}
}

// Buffered returns the number of messages in the flow-control windows and the send buffers of an idle connection: 64
// KiB of frames of about 60 bytes each, with room for those in the socket.
func (w *wire) Buffered() int { return 8192 }

func (w *wire) Source() stream.Source[string] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[string], error) {
		watch, err := w.client.WatchPodUpdates(
			ctx,
			&configv1.WatchPodUpdatesRequest{ResumeToken: token},
			grpc.WaitForReady(true),
		)
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, string, error) {
			m, err := watch.Recv()
			return m.GetFrame(), m.GetSource().GetName(), err
		}, nil
	})
}

type server struct {
	configv1.UnimplementedConfigServiceServer
	src stream.Source[string]
}

func (s *server) WatchPodUpdates(
	req *configv1.WatchPodUpdatesRequest,
	ss grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse],
) error {
	return streamrpc.Serve(ss.Context(), s.src, req.GetResumeToken(), func(f *streamv1.Frame, v string) error {
		return ss.Send(&configv1.WatchPodUpdatesResponse{
			Frame: f, Payload: &configv1.WatchPodUpdatesResponse_Source{Source: &configv1.SourceState{Name: v}},
		})
	})
}
