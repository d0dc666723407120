// Package criproxy is a proxy between a client of the CRI, which may be a whole node, and a container runtime. It
// injects faults into calls. Without faults it is transparent: it forwards the bytes of any method, unary or with a
// stream of answers, with metadata, deadlines and errors. It does not forward streams of requests, which the CRI does
// not have.
//
// A test makes calls fail ([Proxy.Fail]), wait ([Proxy.Delay]), hang ([Proxy.Hang]) or break their connection
// ([Proxy.Drop]). It selects calls by method and by their subject ([For], [Container], [Image]). A fault comes before
// the runtime is called or, with [AfterCall], when the runtime has done its work and only the answer is lost.
// [Proxy.Count] counts calls.
//
//	p, err := criproxy.Start(runtimeEndpoint, filepath.Join(dir, "proxy.sock"))
//	...
//	p.Fail("RunPodSandbox", codes.Unavailable, criproxy.For("web"), criproxy.Times(1))
//	hung := p.Hang("StopContainer", criproxy.For("web"), criproxy.Container("main"))
//	defer hung.Lift()
//
// Calls that name a sandbox or container by ID are matched by the earlier answers with those IDs.
package criproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// maxMessageBytes is the size limit of an answer in clients of the CRI.
	maxMessageBytes = 16 << 20
	// reconnectDelay and reconnectDelayMax bound the back-off of the connection to an unavailable runtime.
	reconnectDelay    = 50 * time.Millisecond
	reconnectDelayMax = 500 * time.Millisecond
)

// Proxy is a running proxy. Its methods may be called from any goroutine.
type Proxy struct {
	socket  string
	server  *grpc.Server
	runtime *grpc.ClientConn
	served  chan error

	conns  connections
	known  *directory
	faults faults
}

// Start serves a unix socket, whose path must be free, and forwards calls to the runtime at an endpoint ("unix://" and
// a path). The runtime need not be running yet.
func Start(runtimeEndpoint, socket string) (*Proxy, error) {
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: time.Second}
	params.Backoff.BaseDelay, params.Backoff.MaxDelay = reconnectDelay, reconnectDelayMax
	runtime, err := grpc.NewClient(runtimeEndpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(params),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(passthrough{}), grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("the runtime's endpoint %q: %w", runtimeEndpoint, err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen as a runtime: %w", err), runtime.Close())
	}
	p := &Proxy{socket: socket, runtime: runtime, served: make(chan error, 1), known: newDirectory()}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(passthrough{}), grpc.UnknownServiceHandler(p.handle),
		grpc.MaxRecvMsgSize(maxMessageBytes))
	go func() { p.served <- p.server.Serve(p.conns.watch(listener)) }()
	return p, nil
}

// Endpoint returns the value for containerRuntimeEndpoint.
func (p *Proxy) Endpoint() string { return "unix://" + p.socket }

// Close lifts every fault, ends open calls and returns when all of them have ended.
func (p *Proxy) Close() error {
	p.faults.liftAll()
	p.server.Stop()
	return errors.Join(<-p.served, p.runtime.Close())
}

// handle takes one call through its faults to the runtime and back.
func (p *Proxy) handle(_ any, client grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(client)
	if !ok {
		return status.Error(codes.Internal, "criproxy: a call without a method")
	}
	var request frame
	if err := client.RecvMsg(&request); err != nil {
		return err
	}
	about, err := p.known.about(method, request)
	if err != nil {
		return status.Errorf(codes.Internal, "criproxy: the request of %s: %v", method, err)
	}
	c := &call{method: method, request: request, about: about}
	done := p.faults.enter(path.Base(method), about)
	defer done()
	ctx := client.Context()
	if err := p.faults.meet(ctx, path.Base(method), about, before, p.drop(ctx)); err != nil {
		return err
	}
	return p.pass(ctx, client, c)
}

// call is a forwarded call.
type call struct {
	method  string
	request frame
	about   Subject
}

// pass makes the call and forwards its answers. A fault after the call replaces its first answer, or its error.
func (p *Proxy) pass(ctx context.Context, client grpc.ServerStream, c *call) error {
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
	}
	ctx, cancel := context.WithCancel(ctx) // the call ends with this function, also when the client reads no answers
	defer cancel()
	runtime, err := p.runtime.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.method)
	if err != nil {
		return err
	}
	if err := runtime.SendMsg(&c.request); err != nil && !errors.Is(err, io.EOF) { // after EOF RecvMsg has the error
		return err
	}
	if err := runtime.CloseSend(); err != nil {
		return err
	}
	for first := true; ; first = false {
		var answer frame
		err := runtime.RecvMsg(&answer)
		if err == nil {
			p.known.learn(c, answer)
		}
		if first {
			if err := p.faults.meet(client.Context(), path.Base(c.method), c.about, after,
				p.drop(client.Context())); err != nil {
				return err
			}
			if err := passHeader(client, runtime); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			client.SetTrailer(runtime.Trailer())
			return nil
		}
		if err != nil {
			client.SetTrailer(runtime.Trailer())
			return err
		}
		if err := client.SendMsg(&answer); err != nil {
			return err
		}
	}
}

func passHeader(client grpc.ServerStream, runtime grpc.ClientStream) error {
	header, err := runtime.Header()
	if err != nil || len(header) == 0 {
		return nil //nolint:nilerr // it is that of the call, which RecvMsg has told
	}
	return client.SetHeader(header)
}

// drop returns the function that breaks the connection of a call.
func (p *Proxy) drop(ctx context.Context) func() {
	return func() { p.conns.breakOff(ctx) }
}
