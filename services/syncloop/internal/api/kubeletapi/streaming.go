package kubeletapi

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// dialTimeout and headerTimeout bound how long the runtime's streaming server may take to begin a stream.
	dialTimeout   = 10 * time.Second
	headerTimeout = 30 * time.Second
	// maxPorts is how many ports one request may forward.
	maxPorts = 64
)

// streamTransport returns a transport to the runtime's streaming server, without a proxy, with connections that are
// used once.
func streamTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout}
	return &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true, ResponseHeaderTimeout: headerTimeout}
}

// streams are the requested streams of a container.
type streams struct{ stdin, stdout, stderr, tty bool }

// streamsOf parses the kubelet's parameters. With a terminal there is no stderr, because it is part of the terminal's
// output.
func streamsOf(query url.Values) (streams, error) {
	s := streams{
		stdin: query.Get("input") == "1", stdout: query.Get("output") == "1", stderr: query.Get("error") == "1",
		tty: query.Get("tty") == "1",
	}
	s.stderr = s.stderr && !s.tty
	if !s.stdin && !s.stdout && !s.stderr {
		return s, wrong("you must specify at least 1 of stdin, stdout, stderr")
	}
	return s, nil
}

// exec runs a command in a container and connects its streams to the client.
func (n *node) exec(w http.ResponseWriter, r *http.Request) {
	var requested streams
	n.stream(w, r, "exec", &requested, func(runtime internalapi.RuntimeService) (target string, err error) {
		if requested, err = streamsOf(r.URL.Query()); err != nil {
			return "", err
		}
		command := r.URL.Query()["command"]
		if len(command) == 0 {
			return "", wrong("you must specify a command")
		}
		pod, container, err := n.containerOf(r)
		if err != nil {
			return "", err
		}
		id, err := n.runningContainer(r, pod, container.Name)
		if err != nil {
			return "", err
		}
		n.audit(r, "exec", pod, telemetry.KeyContainer, container.Name, "program", program(command), "stdin", requested.stdin,
			"tty", requested.tty)
		answer, err := runtime.Exec(telemetry.Outgoing(r.Context()), &runtimeapi.ExecRequest{
			ContainerId: id, Cmd: command,
			Tty: requested.tty, Stdin: requested.stdin, Stdout: requested.stdout, Stderr: requested.stderr,
		})
		return answer.GetUrl(), err
	})
}

// attach connects the client to the streams of a container's main process.
func (n *node) attach(w http.ResponseWriter, r *http.Request) {
	var requested streams
	n.stream(w, r, "attach", &requested, func(runtime internalapi.RuntimeService) (target string, err error) {
		if requested, err = streamsOf(r.URL.Query()); err != nil {
			return "", err
		}
		pod, container, err := n.containerOf(r)
		if err != nil {
			return "", err
		}
		id, err := n.runningContainer(r, pod, container.Name)
		if err != nil {
			return "", err
		}
		// The container's spec decides whether there is a terminal.
		requested.tty, requested.stderr = container.TTY, requested.stderr && !container.TTY
		n.audit(r, "attach", pod, telemetry.KeyContainer, container.Name, "stdin", requested.stdin, "tty", requested.tty)
		answer, err := runtime.Attach(telemetry.Outgoing(r.Context()), &runtimeapi.AttachRequest{
			ContainerId: id, Tty: requested.tty, Stdin: requested.stdin, Stdout: requested.stdout, Stderr: requested.stderr,
		})
		return answer.GetUrl(), err
	})
}

// portForward connects the client to ports of a pod.
func (n *node) portForward(w http.ResponseWriter, r *http.Request) {
	n.stream(w, r, "portforward", nil, func(runtime internalapi.RuntimeService) (string, error) {
		ports, err := portsOf(r.URL.Query())
		if err != nil {
			return "", err
		}
		pod, err := n.podOf(r)
		if err != nil {
			return "", err
		}
		id, err := n.readySandbox(r, pod)
		if err != nil {
			return "", err
		}
		n.audit(r, "port forward", pod, "ports", ports)
		answer, err := runtime.PortForward(telemetry.Outgoing(r.Context()), &runtimeapi.PortForwardRequest{
			PodSandboxId: id, Port: ports,
		})
		return answer.GetUrl(), err
	})
}

// portsOf parses the ports that a WebSocket client names in the query. A SPDY client names them with each stream.
func portsOf(query url.Values) ([]int32, error) {
	var ports []int32
	for _, list := range query["port"] {
		for text := range strings.SplitSeq(list, ",") {
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil || port == 0 || len(ports) == maxPorts {
				return nil, wrong("port %q: must be at most %d numbers from 1 to 65535", list, maxPorts)
			}
			ports = append(ports, int32(port))
		}
	}
	return ports, nil
}

// program returns the name of a command's program for the log, without the arguments, which may be secret.
func program(command []string) string { return filepath.Base(strings.ToValidUTF8(command[0], "?")) }

// audit logs which user does what in a pod.
func (n *node) audit(r *http.Request, operation string, pod *v1.Pod, more ...any) {
	attrs := []any{
		telemetry.KeyPod, pod.Namespace + "/" + pod.Name, telemetry.KeyPodUID, string(pod.UID),
		"user", n.UserName(r), "from", r.RemoteAddr,
	}
	n.Logger.InfoContext(r.Context(), operation+" by the HTTP API", append(attrs, more...)...)
}

// stream connects the client with the runtime's streaming server at the URL that prepare returns. requested are the
// streams that the client requests; prepare sets them, and they are nil for a port-forward. WebSocket protocols that
// the runtime's server does not support are translated, and counted under what.
func (n *node) stream(
	w http.ResponseWriter, r *http.Request, operation string, requested *streams,
	prepare func(internalapi.RuntimeService) (string, error),
) {
	if r.Header.Get("Upgrade") == "" {
		http.Error(w, "Upgrade request required: this is for kubectl exec, attach and port-forward, over SPDY or WebSocket", http.StatusBadRequest)
		return
	}
	runtime, err := n.Runtime()
	var target *url.URL
	if err == nil {
		target, err = prepared(runtime, prepare)
	}
	if err != nil {
		n.refuse(w, r, err)
		return
	}
	switch {
	case requested != nil && wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
		n.Metrics.translated(operation)
		n.translate(w, r, target, *requested)
	case requested == nil && wsstream.IsWebSocketRequestWithTunnelingProtocol(r):
		n.Metrics.translated(operation)
		n.tunnel(w, r, target)
	default:
		n.proxy(w, r, target)
	}
}

// proxy forwards the request to the runtime's streaming server.
func (n *node) proxy(w http.ResponseWriter, r *http.Request, target *url.URL) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = target, target.Host
			// The runtime must not get the credentials of the client.
			p.Out.Header.Del("Authorization")
		},
		Transport: n.streams, ErrorLog: slog.NewLogLogger(n.Logger.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			n.refuse(w, r, fmt.Errorf("reaching the runtime's streaming server at %s: %w", target.Host, err))
		},
	}
	proxy.ServeHTTP(patient{ResponseWriter: w, idle: n.idle()}, r)
}

// prepared returns the URL of a stream at the runtime's streaming server.
func prepared(
	runtime internalapi.RuntimeService, prepare func(internalapi.RuntimeService) (string, error),
) (*url.URL, error) {
	text, err := prepare(runtime)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(text)
	if err != nil || target.Host == "" || (target.Scheme != "http" && target.Scheme != "https") {
		return nil, errors.New("the runtime returned a URL for a stream that is not an HTTP URL")
	}
	return target, nil
}

// refuse answers a request with the error.
func (n *node) refuse(w http.ResponseWriter, r *http.Request, err error) {
	telemetry.Fail(trace.SpanFromContext(r.Context()), err)
	var p *problem
	switch {
	case errors.As(err, &p):
		http.Error(w, p.text, p.code)
		return
	case r.Context().Err() != nil:
		return
	case status.Code(err) == codes.NotFound:
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case status.Code(err) == codes.ResourceExhausted:
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	}
	n.Logger.WarnContext(r.Context(), "a request to the HTTP API has failed", telemetry.KeyError, err, "path", r.URL.Path,
		"user", n.UserName(r))
	failed(w, err)
}

// patient wraps a ResponseWriter. A hijacked connection gets a read and write deadline that each read and write
// extends.
type patient struct {
	http.ResponseWriter
	idle time.Duration
	// closed is called when the connection is closed; it may be nil.
	closed func()
}

// Unwrap is called by http.ResponseController.
func (p patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Hijack implements http.Hijacker.
func (p patient) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(p.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return &idleConn{Conn: conn, idle: p.idle, early: rw.Reader, closed: p.closed}, rw, nil
}

// idleConn is a connection that times out after a period without reads and writes.
type idleConn struct {
	net.Conn
	idle time.Duration
	// early has the data that the client sent together with its request.
	early  *bufio.Reader
	closed func()
}

// Close implements net.Conn.
func (c *idleConn) Close() error {
	if c.closed != nil {
		c.closed()
	}
	return c.Conn.Close()
}

// Read implements net.Conn.
func (c *idleConn) Read(b []byte) (int, error) {
	c.extend()
	if n := c.early.Buffered(); n > 0 {
		return c.early.Read(b[:min(n, len(b))])
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn. It also extends the deadline of a concurrent Read.
func (c *idleConn) Write(b []byte) (int, error) {
	c.extend()
	return c.Conn.Write(b)
}

// extend extends the deadline. It ignores errors, because a closed connection also fails the following call.
func (c *idleConn) extend() { _ = c.SetDeadline(time.Now().Add(c.idle)) }

// CloseWrite closes the sending side, if the connection supports that, or the whole connection.
func (c *idleConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// untilDone returns a writer of a response that may take any time, as long as the client reads each piece within idle.
func untilDone(w http.ResponseWriter, idle time.Duration) *flushed {
	return &flushed{w: w, rc: http.NewResponseController(w), idle: idle}
}

// flushed is a writer that sends each piece to the client at once.
type flushed struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	idle time.Duration
	// begun is true after the first write.
	begun bool
}

// Write implements io.Writer.
func (f *flushed) Write(b []byte) (int, error) {
	f.begun = true
	_ = f.rc.SetWriteDeadline(time.Now().Add(f.idle)) // writers of tests have no deadlines
	n, err := f.w.Write(b)                            //nolint:gosec // what is text is said to be, and nothing is guessed
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}
