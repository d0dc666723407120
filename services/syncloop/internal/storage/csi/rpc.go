package csi

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/drivererror"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// callTimeout is the kubelet's deadline of a call.
const callTimeout = 2 * time.Minute

// hidden replaces secrets in errors.
const hidden = "***stripped***"

// Drivers are the registered CSI drivers of the node.
type Drivers interface {
	// Conn returns the connection to a driver. It fails if the driver is not registered.
	Conn(name string) (grpc.ClientConnInterface, error)
}

// conn is a connection to a driver: each call has a deadline and a span, and its error no secret.
type conn struct {
	grpc.ClientConnInterface
	driver  string
	timeout time.Duration
	tracer  trace.Tracer
}

// Invoke implements grpc.ClientConnInterface.
func (c conn) Invoke(ctx context.Context, method string, in, out any, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	name := method[strings.LastIndex(method, "/")+1:]
	defer volumes.Asking(ctx, answerOf(c.driver, name))()
	ctx, span := c.tracer.Start(ctx, "csi."+name, trace.WithSpanKind(trace.SpanKindClient))
	err := withoutSecrets(c.ClientConnInterface.Invoke(ctx, method, in, out, opts...), secretsOf(in))
	if span.IsRecording() {
		span.SetAttributes(telemetry.Call(strings.TrimPrefix(method, "/"), status.Code(err), c.driver)...)
	}
	telemetry.End(span, err)
	return err
}

// blockDevice is what an operation waits for, for users, while it opens or closes the device of the driver.
const blockDevice = "block device of the volume"

// lock waits for the lock of a staged volume, which is held during calls of the driver for other pods with the volume,
// and to unstage it.
func (p *Plugin) lock(ctx context.Context, v identity, driver string) (unlock func(), err error) {
	return volumes.Locked(ctx, &p.staging, p.books.staging(v), volumes.OtherCall(driver))
}

// answerOf returns what an operation waits for during a call, for users.
func answerOf(driver, call string) string {
	return "CSI driver " + driver + " to answer " + call
}

// secretsOf returns the secret texts of a request.
func secretsOf(request any) []string {
	var secrets []string
	add := func(values map[string]string) {
		for key, value := range values {
			secrets = append(secrets, value)
			tokens := map[string]struct{ Token string }{}
			if key != tokensKey || json.Unmarshal([]byte(value), &tokens) != nil {
				continue // podTokens has not written it
			}
			for _, t := range tokens {
				secrets = append(secrets, t.Token)
			}
		}
	}
	if withSecrets, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		add(withSecrets.GetSecrets())
	}
	if withContext, ok := request.(interface{ GetVolumeContext() map[string]string }); ok {
		if tokens := withContext.GetVolumeContext()[tokensKey]; tokens != "" {
			add(map[string]string{tokensKey: tokens})
		}
	}
	return secrets
}

// withoutSecrets removes secrets from the message of a driver's error, and what is not fit for users.
func withoutSecrets(err error, secrets []string) error {
	answer, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	message := answer.Message()
	for _, secret := range secrets {
		if secret != "" {
			message = strings.ReplaceAll(message, secret, hidden)
		}
	}
	return drivererror.Of(status.Error(answer.Code(), message))
}

// isFinal reports whether a call that has failed is for sure not in progress any more.
func isFinal(err error) bool {
	answer, ok := status.FromError(err)
	if !ok {
		return false // it was not called; an earlier call may be in progress
	}
	switch answer.Code() { //nolint:exhaustive // all others are final
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	default:
		return true
	}
}

// node is a driver's node service with its capabilities.
type node struct {
	csi.NodeClient
	can map[csi.NodeServiceCapability_RPC_Type]bool
}

// connect returns the node service of a driver. A quiet one creates no spans.
func (p *Plugin) connect(driver string, quiet bool) (csi.NodeClient, error) {
	inner, err := p.cfg.Drivers.Conn(driver)
	if err != nil {
		return nil, err
	}
	c := conn{ClientConnInterface: inner, driver: driver, timeout: p.cfg.Timeout, tracer: p.cfg.Tracer}
	if quiet {
		c.tracer = telemetry.Off()
	}
	return csi.NewNodeClient(c), nil
}

// node connects to a driver and asks for its capabilities.
func (p *Plugin) node(ctx context.Context, driver string, quiet bool) (node, error) {
	client, err := p.connect(driver, quiet)
	if err != nil {
		return node{}, err
	}
	n := node{NodeClient: client, can: map[csi.NodeServiceCapability_RPC_Type]bool{}}
	answer, err := n.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return node{}, err
	}
	for _, capability := range answer.GetCapabilities() {
		n.can[capability.GetRpc().GetType()] = true
	}
	return n, nil
}
