package kubeletapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	constants "k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/remotecommand"
	clientspdy "k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// pingPeriod is how often the runtime is pinged while a container is silent.
	pingPeriod = 5 * time.Second
	// statusTimeout bounds the writing of a command's exit status.
	statusTimeout = 10 * time.Second
)

// channels returns the channels of a connection of version 5 of the protocol, by number.
func (s streams) channels() []wsstream.ChannelType {
	channelType := func(enabled bool, kind wsstream.ChannelType) wsstream.ChannelType {
		if enabled {
			return kind
		}
		return wsstream.IgnoreChannel
	}
	return []wsstream.ChannelType{
		constants.StreamStdIn:  channelType(s.stdin, wsstream.ReadChannel),
		constants.StreamStdOut: channelType(s.stdout, wsstream.WriteChannel),
		constants.StreamStdErr: channelType(s.stderr, wsstream.WriteChannel),
		constants.StreamErr:    wsstream.WriteChannel,
		constants.StreamResize: wsstream.ReadChannel,
	}
}

// translate connects a WebSocket client that can half-close its input with the runtime's streaming server, which
// supports half-close over SPDY but not over WebSocket. The exit status of the command, or the error, is sent to the
// client on the error channel.
func (n *node) translate(w http.ResponseWriter, r *http.Request, target *url.URL, requested streams) {
	// The libraries log the end of a connection as an error.
	ctx, cancel := context.WithCancel(klog.NewContext(r.Context(), klog.Logger{}))
	client := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		constants.StreamProtocolV5Name: {Binary: true, Channels: requested.channels()},
	})
	client.SetIdleTimeout(n.idle())
	// When the client disconnects, the work for it is canceled.
	_, channels, err := client.Open(patient{ResponseWriter: w, idle: n.idle(), closed: cancel}, r.WithContext(ctx))
	if err != nil {
		cancel()
		n.Logger.DebugContext(ctx, "a WebSocket client could not be served", telemetry.KeyError, err)
		return
	}
	var sizes sync.WaitGroup
	defer func() {
		_ = client.Close() // the request is done, even if the client did not receive everything
		cancel()
		sizes.Wait()
	}()
	options := remotecommand.StreamOptions{Tty: requested.tty}
	if requested.stdin {
		options.Stdin = channels[constants.StreamStdIn]
	}
	first := channels[constants.StreamErr]
	if requested.stderr {
		options.Stderr, first = channels[constants.StreamStdErr], channels[constants.StreamStdErr]
	}
	if requested.stdout {
		options.Stdout, first = channels[constants.StreamStdOut], channels[constants.StreamStdOut]
	}
	if requested.tty {
		queue := &sizeQueue{ctx: ctx, sizes: make(chan remotecommand.TerminalSize)}
		options.TerminalSizeQueue = queue
		sizes.Go(func() { queue.read(channels[constants.StreamResize]) })
	}
	// An empty write on a stream of the container tells the client that it is connected.
	if _, err = first.Write(nil); err == nil {
		err = n.streamOverSPDY(ctx, target, options)
	}
	n.sendResult(ctx, client, channels[constants.StreamErr], err)
}

// sendResult sends the result of a request to a client.
func (n *node) sendResult(ctx context.Context, client *wsstream.Conn, to io.Writer, ended error) {
	if ctx.Err() != nil {
		return
	}
	data, err := json.Marshal(statusOf(ended))
	if err == nil {
		client.SetWriteDeadline(statusTimeout)
		_, err = to.Write(data)
	}
	if err != nil {
		n.Logger.DebugContext(ctx, "the exit status of a command could not be sent to the client", telemetry.KeyError, err)
	}
}

// statusOf returns the result of a command as a Status of the API.
func statusOf(ended error) metav1.Status {
	var status apierrors.APIStatus
	var code exec.CodeExitError
	switch {
	case ended == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(ended, &status):
		return status.Status()
	case errors.As(ended, &code) && code.Exited():
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: constants.NonZeroExitCodeReason,
			Message: "command terminated with non-zero exit code: " + code.Error(),
			Details: &metav1.StatusDetails{
				Causes: []metav1.StatusCause{{Type: constants.ExitCodeCauseType, Message: fmt.Sprint(code.ExitStatus())}},
			},
		}
	default:
		status := apierrors.NewInternalError(ended).Status()
		// the runtime's error has the same prefix
		status.Message = strings.Replace(status.Message, internal+internal, internal, 1)
		return status
	}
}

// internal is the prefix of the API's internal errors.
const internal = "Internal error occurred: "

// streamOverSPDY connects streams with those of the runtime's streaming server at a URL, until they end or ctx ends.
func (n *node) streamOverSPDY(ctx context.Context, target *url.URL, options remotecommand.StreamOptions) error {
	dial := func(dialing context.Context, network, address string) (net.Conn, error) {
		conn, err := n.streams.DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() }) // the client has left
		return &answering{Conn: conn}, conn.SetReadDeadline(time.Now().Add(headerTimeout))
	}
	upgrade, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{
		PingPeriod: pingPeriod, UpgradeTransport: &http.Transport{DialContext: dial},
	})
	if err != nil {
		return err
	}
	executor, err := remotecommand.NewSPDYExecutorRejectRedirects(upgrade, clientspdy.NewUpgraderForStreaming(upgrade),
		http.MethodPost, target)
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, options)
}

// answering is a connection to the runtime's streaming server that has a read deadline until the first answer.
type answering struct {
	net.Conn
	once sync.Once
}

// Read implements net.Conn.
func (a *answering) Read(b []byte) (int, error) {
	read, err := a.Conn.Read(b)
	if err == nil {
		a.once.Do(func() { err = a.SetReadDeadline(time.Time{}) })
	}
	return read, err
}

// sizeQueue is the queue of the sizes of a client's terminal.
type sizeQueue struct {
	ctx   context.Context //nolint:containedctx // Next has none
	sizes chan remotecommand.TerminalSize
}

// Next implements remotecommand.TerminalSizeQueue.
func (q *sizeQueue) Next() *remotecommand.TerminalSize {
	size, ok := <-q.sizes
	if !ok {
		return nil
	}
	return &size
}

// read reads sizes until the client sends no more.
func (q *sizeQueue) read(from io.Reader) {
	defer close(q.sizes)
	for decoder := json.NewDecoder(from); ; {
		var size remotecommand.TerminalSize
		if decoder.Decode(&size) != nil {
			return
		}
		select {
		case q.sizes <- size:
		case <-q.ctx.Done():
			return
		}
	}
}
