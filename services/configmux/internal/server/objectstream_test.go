package server_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/utils/clock"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/internal/stream/streamtest"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
	"github.com/quartet-node/quartet/services/configmux/internal/server"
)

// WatchObjects fulfills the contract of the streams, for all objects and for a selection.
func TestConformanceOfWatchObjects(t *testing.T) {
	for name, selection := range map[string]*configv1.WatchObjectsRequest{"all": {}, "a selection": {Kind: "Secret", Namespace: "a"}} {
		t.Run(name, func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Transport {
				w := &objectWire{address: "unix://" + filepath.Join(t.TempDir(), "s.sock"), selection: selection}
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
		})
	}
}

// objectWire serves a publisher of texts as the names of secrets.
type objectWire struct {
	address   string
	selection *configv1.WatchObjectsRequest
	client    configv1.ConfigServiceClient
	cancel    context.CancelFunc
	done      chan error
}

// texts has objects made of texts.
type texts struct{ stream.Source[string] }

func (s texts) ObjectStream(selection mux.Selection) stream.Source[mux.ObjectEntry] {
	return mux.Selected(named(s), clock.RealClock{}, selection)
}

func (texts) Objects(apiobject.Kind) []*configv1.ObjectSummary { return nil }

type named struct{ stream.Source[string] }

func (s named) Subscribe(ctx context.Context, token []byte) (stream.Subscription[mux.ObjectEntry], error) {
	sub, err := s.Source.Subscribe(ctx, token)
	if err != nil {
		return nil, err
	}
	return naming{sub}, nil
}

type naming struct{ sub stream.Subscription[string] }

func (n naming) Close() { n.sub.Close() }

func (n naming) Next(ctx context.Context) (stream.Message[mux.ObjectEntry], error) {
	m, err := n.sub.Next(ctx)
	out := stream.Message[mux.ObjectEntry]{Kind: m.Kind, Start: m.Start, Token: m.Token, Key: m.Key, Removed: m.Removed}
	if m.Value != "" {
		out.Value.Object = &configv1.Object{Kind: "Secret", Namespace: "a", Name: m.Value}
	}
	return out, err
}

func (w *objectWire) stop(t *testing.T) {
	t.Helper()
	if w.cancel == nil {
		return
	}
	w.cancel()
	if err := <-w.done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func (w *objectWire) Serve(t *testing.T, src stream.Source[string]) {
	t.Helper()
	w.stop(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w.cancel, w.done = cancel, make(chan error, 1)
	opening, ready := make(chan struct{}), make(chan struct{})
	close(opening)
	s := server.New(server.Config{Opening: opening, Objects: &server.Objects{Held: texts{src}}})
	go func() {
		w.done <- rpc.Serve(ctx, rpc.Config{Address: w.address, Health: rpc.NewHealth(), Register: s.Register,
			Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-w.done:
		t.Fatalf("serve: %v", err)
	}
}

// Buffered is as that of streamrpc's own test.
func (*objectWire) Buffered() int { return 8192 }

func (w *objectWire) Source() stream.Source[string] {
	return streamrpc.NewSource(func(ctx context.Context, token []byte) (streamrpc.Receive[string], error) {
		watch, err := w.client.WatchObjects(ctx, &configv1.WatchObjectsRequest{
			ResumeToken: token, Kind: w.selection.GetKind(), Namespace: w.selection.GetNamespace(),
		}, grpc.WaitForReady(true))
		if err != nil {
			return nil, err
		}
		return func() (*streamv1.Frame, string, error) {
			m, err := watch.Recv()
			if o := m.GetObject(); o != nil && (o.GetKind() != "Secret" || o.GetNamespace() != "a") {
				return nil, "", fmt.Errorf("the object %v is not one that was asked for", o)
			}
			return m.GetFrame(), m.GetObject().GetName(), err
		}, nil
	})
}
