package kubeletapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	serving "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	constants "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	"k8s.io/utils/exec"
)

// insides is the behavior of a container, as a handler for the runtime's streaming server.
type insides struct {
	run  func(in io.Reader, out, errs io.Writer, resize <-chan serving.TerminalSize) error
	port func(port int32, conn io.ReadWriteCloser) error
}

func (i *insides) Exec(
	_ context.Context, _ string, _ []string, in io.Reader, out, errs io.WriteCloser, _ bool,
	resize <-chan serving.TerminalSize,
) error {
	return i.run(in, out, errs, resize)
}

func (i *insides) Attach(
	_ context.Context, _ string, in io.Reader, out, errs io.WriteCloser, _ bool, resize <-chan serving.TerminalSize,
) error {
	return i.run(in, out, errs, resize)
}

func (i *insides) PortForward(_ context.Context, _ string, port int32, conn io.ReadWriteCloser) error {
	return i.port(port, conn)
}

// streamingRuntime is a runtime with the streaming server that runtimes use.
type streamingRuntime struct {
	internalapi.RuntimeService
	server streaming.Server
}

func (s *streamingRuntime) ListContainers(
	context.Context, *runtimeapi.ContainerFilter,
) ([]*runtimeapi.Container, error) {
	return []*runtimeapi.Container{{Id: "c1"}}, nil
}

func (s *streamingRuntime) ListPodSandbox(
	context.Context, *runtimeapi.PodSandboxFilter,
) ([]*runtimeapi.PodSandbox, error) {
	return []*runtimeapi.PodSandbox{{Id: "s1"}}, nil
}

func (s *streamingRuntime) Exec(_ context.Context, request *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return s.server.GetExec(request)
}

func (s *streamingRuntime) Attach(
	_ context.Context, request *runtimeapi.AttachRequest,
) (*runtimeapi.AttachResponse, error) {
	return s.server.GetAttach(request)
}

func (s *streamingRuntime) PortForward(
	_ context.Context, request *runtimeapi.PortForwardRequest,
) (*runtimeapi.PortForwardResponse, error) {
	return s.server.GetPortForward(request)
}

// serveStreams serves the authenticated API of a node with containers of the given behavior. It returns its URL and the
// runtime's server.
func serveStreams(t *testing.T, r *rig, inside *insides) (front string, back *httptest.Server) {
	t.Helper()
	back = httptest.NewUnstartedServer(nil)
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: back.Listener.Addr().String(), Path: "/"}
	server, err := streaming.NewServer(config, inside)
	if err != nil {
		t.Fatal(err)
	}
	back.Config.Handler = server
	back.Start()
	t.Cleanup(back.Close)
	r.cfg.Runtime = func() (internalapi.RuntimeService, error) { return &streamingRuntime{server: server}, nil }
	api := Node(r.cfg)
	t.Cleanup(api.Close)
	served := httptest.NewServer(api)
	t.Cleanup(served.Close)
	return served.URL, back
}

// overWebSocket connects to a node with a current client, directly and not through an API server.
func overWebSocket(t *testing.T, ctx context.Context, address string, options remotecommand.StreamOptions) error { //nolint:revive // the test first
	t.Helper()
	executor, err := remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, address,
		constants.StreamProtocolV5Name)
	if err != nil {
		t.Fatal(err)
	}
	return executor.StreamWithContext(ctx, options)
}

// TestAStreamOverWebSocketEndsItsInputAlone checks that the end of the input does not end the output, and that the exit
// code arrives.
func TestAStreamOverWebSocketEndsItsInputAlone(t *testing.T) {
	r := newRig(t)
	front, _ := serveStreams(t, r,
		&insides{run: func(in io.Reader, out, errs io.Writer, _ <-chan serving.TerminalSize) error {
			read, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(out, "%d bytes", len(read))
			_, _ = io.WriteString(errs, "and a problem")
			return exec.CodeExitError{Err: errors.New("it failed"), Code: 7}
		}})
	var out, errs bytes.Buffer
	err := overWebSocket(t, t.Context(), front+"/exec/default/web/main?command=wc&input=1&output=1&error=1", remotecommand.StreamOptions{
		Stdin: strings.NewReader(strings.Repeat("x", 1<<20)), Stdout: &out, Stderr: &errs,
	})
	var ended clientexec.CodeExitError
	if !errors.As(err, &ended) || ended.Code != 7 || out.String() != "1048576 bytes" || errs.String() != "and a problem" {
		t.Errorf("out = %q, %q, %v, want a %T, ended.Code 7, %q and %q",
			&out, &errs, err, ended, "1048576 bytes", "and a problem")
	}
	const counted = "# HELP kubelet_websocket_streaming_requests_total " +
		"WebSocket streams to containers that are translated for the runtime, " +
		"by kind: exec, attach or portforward." + `
# TYPE kubelet_websocket_streaming_requests_total counter
kubelet_websocket_streaming_requests_total{subresource="exec"} 1
`
	if err := testutil.GatherAndCompare(r.cfg.Gatherer, strings.NewReader(counted),
		"kubelet_websocket_streaming_requests_total"); err != nil {
		t.Error(err)
	}
}

// sizes are the successive sizes of a terminal.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	size, more := <-s
	if !more {
		return nil
	}
	return &size
}

// TestATerminalOverWebSocketIsAsLargeAsTheClients checks that each change of the terminal's size arrives.
func TestATerminalOverWebSocketIsAsLargeAsTheClients(t *testing.T) {
	r := newRig(t)
	r.cfg.Pods.(somePods)[0].Spec.Containers[0].TTY = true //nolint:forcetypeassert // it is newRig's
	front, _ := serveStreams(t, r,
		&insides{run: func(_ io.Reader, out, _ io.Writer, resize <-chan serving.TerminalSize) error {
			for range 2 {
				size := <-resize
				_, _ = fmt.Fprintf(out, "%dx%d\n", size.Height, size.Width)
			}
			return nil
		}})
	given := make(sizes)
	var out bytes.Buffer
	go func() {
		defer close(given)
		given <- remotecommand.TerminalSize{Height: 24, Width: 80}
		given <- remotecommand.TerminalSize{Height: 50, Width: 132}
	}()
	err := overWebSocket(t, t.Context(), front+"/attach/default/web/main?output=1&tty=1", remotecommand.StreamOptions{Stdout: &out, Tty: true, TerminalSizeQueue: given})
	if err != nil || out.String() != "24x80\n50x132\n" {
		t.Errorf("out = %q, %v, want %q", &out, err, "24x80\n50x132\n")
	}
}

// TestAClientOverWebSocketThatLeavesIsNoticed checks that a lost connection ends the stream even if its input has not
// ended.
func TestAClientOverWebSocketThatLeavesIsNoticed(t *testing.T) {
	r := newRig(t)
	noticed := make(chan struct{})
	front, _ := serveStreams(t, r,
		&insides{run: func(in io.Reader, out, _ io.Writer, _ <-chan serving.TerminalSize) error {
			_, _ = io.WriteString(out, "hello\n")
			_, _ = io.Copy(io.Discard, in)
			close(noticed)
			return nil
		}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, writer := io.Pipe()
	never, hold := io.Pipe()
	defer hold.Close() //nolint:errcheck // a pipe has no error
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = overWebSocket(t, ctx, front+"/exec/default/web/main?command=cat&input=1&output=1", remotecommand.StreamOptions{Stdin: never, Stdout: writer})
	}()
	if line, err := bufio.NewReader(reader).ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("ReadString() = %q, %v, want %q", line, err, "hello\n")
	}
	cancel()
	<-done
	<-noticed
}

func TestAWebSocketClientGetsTheReasonForAMissingStream(t *testing.T) {
	r := newRig(t)
	front, back := serveStreams(t, r,
		&insides{run: func(io.Reader, io.Writer, io.Writer, <-chan serving.TerminalSize) error {
			return errors.New("there is no such program")
		}})
	err := overWebSocket(t, t.Context(), front+"/exec/default/web/main?command=none&output=1", remotecommand.StreamOptions{Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "there is no such program") || strings.Count(err.Error(), "Internal error") != 1 {
		t.Errorf("overWebSocket() error = %v, want an error with %q and %q once",
			err, "there is no such program", "Internal error")
	}
	back.Close()
	err = overWebSocket(t, t.Context(), front+"/exec/default/web/main?command=ls&output=1", remotecommand.StreamOptions{Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("overWebSocket() error = %v, want an error with %q", err, "connection refused")
	}
	if err := overWebSocket(t, t.Context(), front+"/exec/default/other/main?command=ls&output=1", remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
		t.Error("there is a stream to a pod that there is not")
	}
}

// TestPortsAreForwardedOverWebSocket uses the protocol that kubectl tunnels through the WebSocket.
func TestPortsAreForwardedOverWebSocket(t *testing.T) {
	r := newRig(t)
	front, back := serveStreams(t, r, &insides{port: func(port int32, conn io.ReadWriteCloser) error {
		defer conn.Close() //nolint:errcheck // the client looks at what it gets
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil {
			_, err = fmt.Fprintf(conn, "port %d was told %s", port, line)
		}
		return err
	}})
	target, err := url.Parse(front + "/portForward/default/web")
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := portforward.NewSPDYOverWebsocketDialer(target, &rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{":80"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"this", "that"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, text+"\n")
		answer, failed := io.ReadAll(conn)
		if err = errors.Join(err, failed, conn.Close()); err != nil || string(answer) != "port 80 was told "+text+"\n" {
			t.Errorf("ReadAll() = %q, %v, want %q", answer, err, "port 80 was told "+text+"\n")
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	back.Close()
	if _, _, err := dialer.Dial(constants.StreamProtocolV4Name); err == nil {
		t.Error("the runtime's server is away, and there is a connection to it")
	}
}
