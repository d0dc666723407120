// Package criproxy stands between a client of the CRI, which may be a whole node, and a container runtime, and makes calls fail
// that the runtime would have answered well. Without faults it is transparent: it passes on the bytes of any method, unary or
// with a stream of answers, with metadata, deadlines and errors; what the CRI does not have, streams of requests, it does not
// pass on.
//
// A test makes calls fail ([Proxy.Fail]), wait ([Proxy.Delay]), hang ([Proxy.Hang]) or break their connection ([Proxy.Drop]), by
// method and by what they are about ([For], [Container], [Image]), before the runtime is called or, with [AfterCall], when it has
// done its work and only the answer is lost. [Proxy.Count] counts them.
//
//	p, err := criproxy.Start(runtimeEndpoint, filepath.Join(dir, "proxy.sock"))
//	...
//	p.Fail("RunPodSandbox", codes.Unavailable, criproxy.For("web"), criproxy.Times(1))
//	hung := p.Hang("StopContainer", criproxy.For("web"), criproxy.Container("main"))
//	defer hung.Lift()
//
// Calls that name a sandbox or container by ID are told apart by what the proxy has seen of those IDs in earlier answers.
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
	// maxMessageBytes is what clients of the CRI take in one answer.
	maxMessageBytes = 16 << 20
	// reconnectDelay and reconnectDelayMax are the back-off of the connection to a runtime that is away.
	reconnectDelay    = 50 * time.Millisecond
	reconnectDelayMax = 500 * time.Millisecond
)

// Proxy is a proxy that serves. Its methods may be called from any goroutine.
type Proxy struct {
	socket  string
	server  *grpc.Server
	runtime *grpc.ClientConn
	served  chan error

	conns  connections
	known  *directory
	faults faults
}

// Start serves a unix socket, whose path must be free, and passes on what comes to the runtime at an endpoint ("unix://" and
// a path), which need not be there yet.
func Start(runtimeEndpoint, socket string) (*Proxy, error) {
	params := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: time.Second}
	params.Backoff.BaseDelay, params.Backoff.MaxDelay = reconnectDelay, reconnectDelayMax
	runtime, err := grpc.NewClient(runtimeEndpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(params),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(passthrough{}), grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("the runtime's endpoint %q: %w", runtimeEndpoint, err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen as a runtime: %w", err), runtime.Close())
	}
	p := &Proxy{socket: socket, runtime: runtime, served: make(chan error, 1), known: newDirectory()}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(passthrough{}), grpc.UnknownServiceHandler(p.handle), grpc.MaxRecvMsgSize(maxMessageBytes))
	go func() { p.served <- p.server.Serve(p.conns.watch(listener)) }()
	return p, nil
}

// Endpoint is the address to give as containerRuntimeEndpoint.
func (p *Proxy) Endpoint() string { return "unix://" + p.socket }

// Close lifts every fault, breaks off what is under way and returns when all of it has ended.
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

// call is a call that is passed on.
type call struct {
	method  string
	request frame
	about   Subject
}

// pass makes the call and passes its answers on. A fault that comes after the call comes in the place of its first answer, or
// of its error.
func (p *Proxy) pass(ctx context.Context, client grpc.ServerStream, c *call) error {
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md.Copy())
	}
	ctx, cancel := context.WithCancel(ctx) // the call ends with this function, also when the client takes no answers
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
			if err := p.faults.meet(client.Context(), path.Base(c.method), c.about, after, p.drop(client.Context())); err != nil {
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

// drop returns what breaks the connection that a call came by.
func (p *Proxy) drop(ctx context.Context) func() {
	return func() { p.conns.breakOff(ctx) }
}
