// Package cri connects a service to the container runtime by k8s.io/cri-client. A runtime that is not up yet, or is
// killed and comes back, is normal: [New] never waits, [Client.Runtime] and [Client.Images] wait for the first good
// answer, and after it grpc reconnects by itself.
//
// pleg and syncloop use it; pleg for list, inspect and event calls only.
package cri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
	criutil "k8s.io/cri-client/pkg/util"
	"k8s.io/klog/v2"
)

const (
	// maxMessageBytes is cri-client's own limit for one answer of the runtime.
	maxMessageBytes = 16 << 20
	// attemptTimeout bounds one question to a runtime that takes connections and does not answer.
	attemptTimeout = 10 * time.Second
	// retryInterval separates questions to a runtime that cannot be reached, or answers with errors as one does whose CRI
	// plugin still loads. A question between two tries of the connection costs nothing.
	retryInterval = 200 * time.Millisecond
	// reconnectDelay and reconnectDelayMax are the back-off of the connection for probes and events.
	reconnectDelay    = 100 * time.Millisecond
	reconnectDelayMax = time.Second
)

// Config says where the runtime is.
type Config struct {
	// Endpoint is the runtime's socket, for example "unix:///run/containerd/containerd.sock": containerRuntimeEndpoint
	// of the KubeletConfiguration.
	Endpoint string
	// ImageEndpoint is the socket of the image service; Endpoint when empty.
	ImageEndpoint string
	// Timeout bounds each call, and is doubled for sandboxes by cri-client: runtimeRequestTimeout of the
	// KubeletConfiguration. A context with an earlier deadline wins.
	Timeout time.Duration
	// Registerer gets kubelet_runtime_operations_*: the calls of the services that are handed out, and the streams of
	// events. The questions that wait for a runtime to come are not among them. Nobody counts when nil.
	Registerer prometheus.Registerer
	// Logger gets a line when the runtime cannot be reached and when it can; the default one when nil.
	Logger *slog.Logger
}

// Client is a service's connection to the runtime. It starts no goroutine: who asks for a service waits for it in its own.
type Client struct {
	conn    *grpc.ClientConn
	image   *grpc.ClientConn
	runtime slot[internalapi.RuntimeService]
	images  slot[internalapi.ImageManagerService]
	counts  *operations
}

// New checks the configuration and returns at once, whether the runtime is there or not. It fails when an endpoint is
// not one, or the timeout is not positive.
func New(cfg Config) (*Client, error) {
	if cfg.Timeout <= 0 {
		return nil, fmt.Errorf("runtimeRequestTimeout has to be positive, it is %v", cfg.Timeout)
	}
	if cfg.ImageEndpoint == "" {
		cfg.ImageEndpoint = cfg.Endpoint
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	conn, err := dial(cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("containerRuntimeEndpoint %q: %w", cfg.Endpoint, err)
	}
	image := conn
	if cfg.ImageEndpoint != cfg.Endpoint {
		if image, err = dial(cfg.ImageEndpoint); err != nil {
			return nil, errors.Join(fmt.Errorf("imageServiceEndpoint %q: %w", cfg.ImageEndpoint, err), conn.Close())
		}
	}
	// cri-client is told to leave its own tracing out: Caller makes the spans.
	c := &Client{conn: conn, image: image, counts: newOperations(cfg.Registerer)}
	c.runtime = newSlot(cfg.Endpoint, "runtime service", cfg.Logger, func(ctx context.Context) error {
		_, err := runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{})
		return err
	}, criclient.NewRemoteRuntimeServiceBuilder().
		WithEndpoint(cfg.Endpoint).WithConnectionTimeout(cfg.Timeout).WithTracerProvider(nil).Build)
	c.images = newSlot(cfg.ImageEndpoint, "image service", cfg.Logger, func(ctx context.Context) error {
		_, err := runtimeapi.NewImageServiceClient(image).ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		return err
	}, criclient.NewRemoteImageServiceBuilder().
		WithEndpoint(cfg.ImageEndpoint).WithConnectionTimeout(cfg.Timeout).WithTracerProvider(nil).Build)
	return c, nil
}

func dial(endpoint string) (*grpc.ClientConn, error) {
	if endpoint == "" {
		return nil, errors.New("no endpoint is given, for example unix:///run/containerd/containerd.sock")
	}
	addr, dialer, err := criutil.GetAddressAndDialer(endpoint)
	if err != nil {
		return nil, err
	}
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: attemptTimeout}
	params.Backoff.BaseDelay, params.Backoff.MaxDelay = reconnectDelay, reconnectDelayMax
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(dialer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithConnectParams(params))
}

// Runtime returns the runtime service, waiting for the runtime's first good answer. When ctx ends before, the error is a
// *NotConnectedError. Once it has succeeded it always does, at once, also while the runtime is away: then the calls fail.
func (c *Client) Runtime(ctx context.Context) (internalapi.RuntimeService, error) {
	service, err := c.runtime.get(ctx)
	if err != nil {
		return nil, err
	}
	return countedRuntime{RuntimeService: service, operations: c.counts}, nil
}

// Images returns the image service, as Runtime does the runtime service.
func (c *Client) Images(ctx context.Context) (internalapi.ImageManagerService, error) {
	service, err := c.images.get(ctx)
	if err != nil {
		return nil, err
	}
	return countedImages{ImageManagerService: service, operations: c.counts}, nil
}

// Events hands every container event of the runtime to handle, from one goroutine, until the stream ends; it always
// returns the error that ended it, codes.Unimplemented when the runtime has no events. It waits for a runtime that is
// away. handle must not wait: containerd holds back all other work on containers while one subscriber does not read.
//
// opened is called when the request has been handed to a connected runtime. gRPC does not tell whether the runtime has
// accepted it until it speaks, and it speaks when it has an event or an error.
func (c *Client) Events(ctx context.Context, opened func(), handle func(*runtimeapi.ContainerEventResponse)) error {
	return countedOnly(c.counts, "get_container_events", func() error { return c.events(ctx, opened, handle) })
}

func (c *Client) events(ctx context.Context, opened func(), handle func(*runtimeapi.ContainerEventResponse)) error {
	stream, err := runtimeapi.NewRuntimeServiceClient(c.conn).GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	opened()
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		handle(event)
	}
}

// Close closes the connections. Services that were handed out do not work any more.
func (c *Client) Close() error {
	ctx := Quiet(context.Background())
	err := errors.Join(c.runtime.close(ctx, internalapi.RuntimeService.Close), c.images.close(ctx, internalapi.ImageManagerService.Close), c.conn.Close())
	if c.image != c.conn {
		err = errors.Join(err, c.image.Close())
	}
	return err
}

// Quiet keeps cri-client from logging each failed call on its own: it does so at error level, also for what its caller
// expects, such as a container that is gone, and the caller gets the same error.
func Quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// slot holds a service once it is connected.
type slot[T any] struct {
	endpoint, what string
	logger         *slog.Logger
	// probe asks the runtime on a connection that is kept. cri-client's builder leaves its connection open, with its
	// goroutines, each time that it fails, so it is only called when the runtime has just answered.
	probe func(context.Context) error
	build func(context.Context) (T, error)
	// turn has room for the one who connects; the others wait for it.
	turn  chan struct{}
	state *slotState[T]
}

type slotState[T any] struct {
	mu        sync.Mutex
	connected bool
	service   T
	cause     error
}

func newSlot[T any](endpoint, what string, logger *slog.Logger, probe func(context.Context) error, build func(context.Context) (T, error)) slot[T] {
	return slot[T]{endpoint: endpoint, what: what, logger: logger, probe: probe, build: build,
		turn: make(chan struct{}, 1), state: &slotState[T]{}}
}

func (s *slot[T]) get(ctx context.Context) (T, error) {
	if service, ok := s.peek(); ok {
		return service, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return s.fail(ctx.Err())
	}
	for {
		if service, ok := s.peek(); ok {
			return service, nil
		}
		err := s.connect(ctx)
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			s.note(err)
		}
		select {
		case <-ctx.Done():
			return s.fail(ctx.Err())
		case <-time.After(retryInterval):
		}
	}
}

func (s *slot[T]) connect(ctx context.Context) error {
	ctx = Quiet(ctx)
	attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if err := s.probe(attempt); err != nil {
		return err
	}
	service, err := s.build(ctx)
	if err != nil {
		return err
	}
	s.logger.Info("connected to the container runtime", "what", s.what, "endpoint", s.endpoint)
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.service, s.state.connected = service, true
	return nil
}

func (s *slot[T]) peek() (T, bool) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.service, s.state.connected
}

// note keeps why a try failed, and logs it when it is not what the last one failed of.
func (s *slot[T]) note(err error) {
	s.state.mu.Lock()
	known := s.state.cause != nil && s.state.cause.Error() == err.Error()
	s.state.cause = err
	s.state.mu.Unlock()
	if !known {
		s.logger.Warn("the container runtime does not answer, trying again until it does", "what", s.what, "endpoint", s.endpoint, "error", Away(s.endpoint, err))
	}
}

func (s *slot[T]) fail(err error) (T, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	var none T
	return none, &NotConnectedError{Endpoint: s.endpoint, Cause: s.state.cause, Ended: err}
}

func (s *slot[T]) close(ctx context.Context, closeService func(T, context.Context) error) error {
	service, ok := s.peek()
	if !ok {
		return nil
	}
	return closeService(service, ctx)
}
