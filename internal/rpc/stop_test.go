package rpc_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/internal/rpc"
)

// busy is a service whose stream never stops sending, and whose call blocks.
type busy struct {
	configv1.UnimplementedConfigServiceServer
	called, answer, sent chan struct{}
}

func (b busy) ListPods(context.Context, *configv1.ListPodsRequest) (*configv1.ListPodsResponse, error) {
	close(b.called)
	<-b.answer
	return &configv1.ListPodsResponse{}, nil
}

func (b busy) WatchPodUpdates(
	_ *configv1.WatchPodUpdatesRequest,
	out grpc.ServerStreamingServer[configv1.WatchPodUpdatesResponse],
) error {
	m := &configv1.WatchPodUpdatesResponse{Payload: &configv1.WatchPodUpdatesResponse_Source{
		Source: &configv1.SourceState{Name: strings.Repeat("x", 1<<20)},
	}}
	for {
		if err := out.Send(m); err != nil {
			return err
		}
		select {
		case b.sent <- struct{}{}:
		default:
		}
	}
}

// serveBusy serves a busy service with a subscriber that does not read, and returns the client and the function that
// stops the service.
func serveBusy(t *testing.T, service busy) (client configv1.ConfigServiceClient, address string, stop func() error) {
	t.Helper()
	address = "unix://" + filepath.Join(t.TempDir(), "s.sock")
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- rpc.Serve(ctx, rpc.Config{
			Address: address, Health: rpc.NewHealth(), Ready: func() { close(ready) },
			Register: func(s *grpc.Server) { configv1.RegisterConfigServiceServer(s, service) },
		})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	conn, err := rpc.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	client = configv1.NewConfigServiceClient(conn)
	if _, err := client.WatchPodUpdates(t.Context(), &configv1.WatchPodUpdatesRequest{}); err != nil {
		t.Fatal(err)
	}
	<-service.sent
	return client, address, func() error {
		cancel()
		return <-done
	}
}

func TestASubscriberThatDoesNotReadDoesNotDelayTheStop(t *testing.T) {
	_, _, stop := serveBusy(t, busy{sent: make(chan struct{})})
	begin := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > callsPatience {
		t.Errorf("the stop took %v", took)
	}
}

func TestACallInFlightIsAnsweredBeforeTheStop(t *testing.T) {
	service := busy{called: make(chan struct{}), answer: make(chan struct{}), sent: make(chan struct{})}
	client, address, stop := serveBusy(t, service)
	answered, stopped := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := client.ListPods(t.Context(), &configv1.ListPodsRequest{})
		answered <- err
	}()
	<-service.called
	go func() { stopped <- stop() }()
	for deadline := time.Now().Add(60 * time.Second); ; {
		if _, err := rpc.ServerOf(address); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it accepts connections a minute after its stop began")
		}
	}
	close(service.answer)
	if err := <-answered; err != nil {
		t.Errorf("the call that was in flight: %v, want its answer", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
