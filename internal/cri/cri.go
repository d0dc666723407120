// Package cri connects a service to the container runtime with k8s.io/cri-client. A runtime that has not started yet or
// restarts is normal: [New] never waits, [Client.Runtime] and [Client.Images] wait for the first successful answer, and
// afterwards gRPC reconnects by itself.
//
// pleg and syncloop use it; pleg only for list, inspect and event calls.
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

	"github.com/quartet-node/quartet/internal/runtimecalls"
)

const (
	// maxMessageBytes is cri-client's own limit for one response of the runtime.
	maxMessageBytes = 16 << 20
	// attemptTimeout bounds one probe of a runtime that accepts connections and does not answer.
	attemptTimeout = 10 * time.Second
	// retryInterval is the interval of probes to a runtime that is unreachable or fails, for example while its CRI plugin
	// loads. A probe between two connection attempts costs nothing.
	retryInterval = 200 * time.Millisecond
	// reconnectDelay and reconnectDelayMax are the back-off of the connection for probes and events.
	reconnectDelay    = 100 * time.Millisecond
	reconnectDelayMax = time.Second
)

// Config holds the addresses and limits of a Client.
type Config struct {
	// Endpoint is the runtime's socket, for example "unix:///run/containerd/containerd.sock": containerRuntimeEndpoint
	// of the KubeletConfiguration.
	Endpoint string
	// ImageEndpoint is the socket of the image service; Endpoint when empty.
	ImageEndpoint string
	// Timeout bounds each call, doubled by cri-client for sandboxes: runtimeRequestTimeout of the KubeletConfiguration. An
	// earlier deadline of the context takes precedence.
	Timeout time.Duration
	// Registerer registers kubelet_runtime_operations_*, which count the calls of the returned services and the event
	// streams, but not the probes of an unreachable runtime. Calls are not counted if it is nil.
	Registerer prometheus.Registerer
	// Calls takes each call of the returned services and each event of the runtime; nil takes none.
	Calls *runtimecalls.Tap
	// Logger logs when the runtime becomes unreachable and reachable; slog's default if nil.
	Logger *slog.Logger
}

// Client is a service's connection to the runtime. It starts no goroutine: callers wait in their own.
type Client struct {
	conn    *grpc.ClientConn
	image   *grpc.ClientConn
	runtime slot[internalapi.RuntimeService]
	images  slot[internalapi.ImageManagerService]
	counts  *operations
	calls   *runtimecalls.Tap
}

// New validates the configuration and returns without waiting for the runtime. It fails for an invalid endpoint or a
// timeout that is not positive.
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
	// cri-client's own tracing is off: Caller creates the spans.
	c := &Client{conn: conn, image: image, counts: newOperations(cfg.Registerer), calls: cfg.Calls}
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

// Runtime waits for the runtime's first successful answer and returns the runtime service. If ctx ends first, the error
// is a *NotConnectedError. After its first success it always succeeds at once, even while the runtime is unreachable;
// then the calls fail.
func (c *Client) Runtime(ctx context.Context) (internalapi.RuntimeService, error) {
	service, err := c.runtime.get(ctx)
	if err != nil {
		return nil, err
	}
	return countedRuntime{RuntimeService: runtimecalls.Runtime(service, c.calls), operations: c.counts}, nil
}

// Images returns the image service in the same way as Runtime.
func (c *Client) Images(ctx context.Context) (internalapi.ImageManagerService, error) {
	service, err := c.images.get(ctx)
	if err != nil {
		return nil, err
	}
	return countedImages{ImageManagerService: runtimecalls.Images(service, c.calls), operations: c.counts}, nil
}

// Events passes every container event of the runtime to handle, from one goroutine, until the stream ends. It always
// returns the error that ended the stream; codes.Unimplemented if the runtime has no events. It waits for an
// unreachable runtime. handle must not block: containerd delays all work on containers while one subscriber does not
// read.
//
// opened is called when the request has been passed to a connected runtime. gRPC does not report whether the runtime
// has accepted it before the first event or error.
func (c *Client) Events(ctx context.Context, opened func(), handle func(*runtimeapi.ContainerEventResponse)) error {
	return countedOnly(c.counts, "get_container_events", func() error { return c.events(ctx, opened, handle) })
}

func (c *Client) events(ctx context.Context, opened func(), handle func(*runtimeapi.ContainerEventResponse)) error {
	stream, err := runtimeapi.NewRuntimeServiceClient(c.conn).
		GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	opened()
	for {
		event, err := stream.Recv()
		if err != nil {
			return err
		}
		c.calls.Event(event)
		handle(event)
	}
}

// Close closes the connections. The returned services do not work any more.
func (c *Client) Close() error {
	ctx := Quiet(context.Background())
	err := errors.Join(
		c.runtime.close(ctx, internalapi.RuntimeService.Close),
		c.images.close(ctx, internalapi.ImageManagerService.Close),
		c.conn.Close(),
	)
	if c.image != c.conn {
		err = errors.Join(err, c.image.Close())
	}
	return err
}

// Quiet keeps cri-client from logging each failed call. It logs at error level, even for failures that the caller
// expects, such as a missing container, and the caller receives the same error.
func Quiet(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }

// slot holds a service after it has connected.
type slot[T any] struct {
	endpoint, name string
	logger         *slog.Logger
	// probe calls the runtime on a persistent connection. cri-client's builder leaks its connection and goroutines each
	// time it fails, so it is called only after a successful probe.
	probe func(context.Context) error
	build func(context.Context) (T, error)
	// turn is a semaphore for the goroutine that connects; the others wait for it.
	turn  chan struct{}
	state *slotState[T]
}

type slotState[T any] struct {
	mu        sync.Mutex
	connected bool
	service   T
	cause     error
}

func newSlot[T any](
	endpoint, name string,
	logger *slog.Logger,
	probe func(context.Context) error,
	build func(context.Context) (T, error),
) slot[T] {
	return slot[T]{endpoint: endpoint, name: name, logger: logger, probe: probe, build: build,
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
	// It has just answered, so the end of ctx does not interrupt the builder, which would leak.
	building, stop := context.WithTimeout(context.WithoutCancel(ctx), attemptTimeout)
	defer stop()
	service, err := s.build(building)
	if err != nil {
		return err
	}
	s.logger.Info("connected to the container runtime", "what", s.name, "endpoint", s.endpoint)
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

// note keeps the reason of a failed attempt, and logs it if it differs from the last one.
func (s *slot[T]) note(err error) {
	s.state.mu.Lock()
	known := s.state.cause != nil && s.state.cause.Error() == err.Error()
	s.state.cause = err
	s.state.mu.Unlock()
	if !known {
		s.logger.Warn("the container runtime does not answer, trying again until it does", "what", s.name,
			"endpoint", s.endpoint, "error", Away(s.endpoint, err))
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
