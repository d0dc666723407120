package plugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/drivererror"
)

const (
	// infoTimeout bounds the connection to a plugin and its answer about itself. The kubelet waits as long for the
	// connection, because a plugin may listen some time after the socket was created.
	infoTimeout = 10 * time.Second
	// handleTimeout bounds each call of a handler; it is the kubelet's limit for calls of a CSI driver.
	handleTimeout = 2 * time.Minute
	// notifyTimeout bounds the notification of a plugin; it is the kubelet's number.
	notifyTimeout = 5 * time.Second
	// maxAnswer bounds the answers of a plugin about itself, in bytes. They are some names.
	maxAnswer = 64 << 10
	// firstRedial and lastRedial are the pauses between attempts to connect within infoTimeout.
	firstRedial, lastRedial = 50 * time.Millisecond, time.Second
)

// Plugin is a plugin as it describes itself.
type Plugin struct {
	// Type is the type, for example "CSIPlugin".
	Type string
	// Name is the name of the plugin, unique among those of its type.
	Name string
	// Endpoint is the path of the socket of its service. It is Socket if the plugin does not name another one.
	Endpoint string
	// Versions are the supported versions of the service.
	Versions []string
	// Socket is the path of the socket in the folder.
	Socket string
}

// Handler handles the plugins of one type. Its methods may be called concurrently, also for two sockets whose plugins
// have the same name. They return early when the context ends.
type Handler interface {
	// Validate returns why a plugin cannot be registered, or nil.
	Validate(ctx context.Context, p Plugin) error
	// Register registers a plugin that Validate has accepted. After an error the plugin is not registered.
	Register(ctx context.Context, p Plugin) error
	// Deregister undoes Register. It is called once for each successful Register.
	Deregister(ctx context.Context, p Plugin)
}

// dial returns a connection to a socket. It does not connect yet.
func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: firstRedial, Multiplier: 2, Jitter: 0.2, MaxDelay: lastRedial},
			MinConnectTimeout: infoTimeout,
		}),
	)
}

// register registers the plugin of a socket with the handler of its type, and notifies the plugin of the result. After
// an error the plugin is not registered.
func register(ctx context.Context, socket string, handlers map[string]Handler) (p Plugin, err error) {
	conn, err := dial(socket)
	if err != nil {
		return Plugin{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := registrationv1.NewRegistrationClient(conn)
	p, err = info(ctx, client, socket)
	if err != nil {
		return Plugin{}, err
	}
	handler := handlers[p.Type]
	if handler == nil {
		return p, refuse(ctx, client, fmt.Errorf("no handler registered for plugin type: %.64s at socket %s", p.Type, socket))
	}
	handling, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	if err := handler.Validate(handling, p); err != nil {
		return p, refuse(ctx, client, fmt.Errorf("plugin validation failed with err: %w", err))
	}
	if err := handler.Register(handling, p); err != nil {
		return p, refuse(ctx, client, fmt.Errorf("plugin registration failed with err: %w", err))
	}
	err = notify(ctx, client, &registrationv1.RegistrationStatus{PluginRegistered: true})
	if err == nil {
		return p, nil
	}
	// otherwise this process ends, and the plugin stays
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), errOutdated) {
		undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), handleTimeout)
		defer cancel()
		handler.Deregister(undoing, p)
	}
	return p, fmt.Errorf("notify the plugin that it is registered: %w", err)
}

// errOutdated is the cause of the end of a registration whose socket is gone or replaced.
var errOutdated = errors.New("the socket is gone or replaced")

// info asks a plugin about itself.
func info(ctx context.Context, client registrationv1.RegistrationClient, socket string) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	info, err := client.GetInfo(ctx, &registrationv1.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return Plugin{}, fmt.Errorf("ask the plugin about itself: %w", drivererror.Of(err))
	}
	p := Plugin{
		Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions(),
		Socket: socket,
	}
	if p.Endpoint == "" {
		p.Endpoint = socket
	}
	return p, nil
}

// refuse notifies a plugin that it is not registered, in the kubelet's words, and returns the reason.
func refuse(ctx context.Context, client registrationv1.RegistrationClient, reason error) error {
	status := &registrationv1.RegistrationStatus{Error: "RegisterPlugin error -- " + reason.Error()}
	if err := notify(ctx, client, status); err != nil {
		return fmt.Errorf("%w (and the plugin could not be notified: %w)", reason, err)
	}
	return reason
}

func notify(
	ctx context.Context, client registrationv1.RegistrationClient, status *registrationv1.RegistrationStatus,
) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	_, err := client.NotifyRegistrationStatus(ctx, status)
	return drivererror.Of(err)
}
