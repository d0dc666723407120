package deviceplugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	keyResource, keyResources = "resource", "resources"
	// connectTimeout is the kubelet's limit for the connection to a plugin. Here it also bounds the plugin's answer about
	// its options.
	connectTimeout = 10 * time.Second
	// replaceTimeout bounds the wait for the end of a plugin whose successor registers with the same socket.
	replaceTimeout = 2 * time.Second
	// firstRedial and lastRedial are the pauses between attempts to connect.
	firstRedial, lastRedial = 50 * time.Millisecond, time.Second
)

// endpoint is a connected plugin.
type endpoint struct {
	resource, socket string
	conn             *grpc.ClientConn
	client           pluginapi.DevicePluginClient
	options          *pluginapi.DevicePluginOptions
	// cancel ends the stream of devices, and over is closed after it has ended.
	cancel context.CancelFunc
	over   chan struct{}
	// ended is true after the plugin was removed from Manager.plugins; guarded by Manager.mu.
	ended bool
}

func dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///device-plugin",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRedial, Multiplier: 2, Jitter: 0.2, MaxDelay: lastRedial},
			MinConnectTimeout: connectTimeout,
		}),
	)
}

// connect connects to a plugin, asks for its options, and begins to follow its devices.
func (m *Manager) connect(ctx context.Context, resource, socket string) error {
	if err := m.makeRoom(ctx, resource, socket); err != nil {
		return err
	}
	conn, err := dial(socket)
	if err != nil {
		return fmt.Errorf("failed to dial device plugin: %w", err)
	}
	client := pluginapi.NewDevicePluginClient(conn)
	asked, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	options, err := client.GetDevicePluginOptions(asked, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		return errors.Join(fmt.Errorf("failed to get device plugin options: %w", err), conn.Close())
	}
	e := &endpoint{
		resource: resource, socket: socket, conn: conn, client: client, options: options, over: make(chan struct{}),
	}
	if err := m.add(e); err != nil {
		return errors.Join(err, conn.Close())
	}
	m.cfg.Logger.Info("connected to a device plugin", keyResource, resource, telemetry.KeyFile, socket,
		"preferred_allocation", options.GetGetPreferredAllocationAvailable(), "pre_start", options.GetPreStartRequired())
	return nil
}

// makeRoom waits for the end of a plugin with the same socket, which was perhaps restarted. It fails if the plugin is
// alive, as the kubelet does.
func (m *Manager) makeRoom(ctx context.Context, resource, socket string) error {
	m.mu.Lock()
	e := m.find(resource, socket)
	m.mu.Unlock()
	if e == nil {
		return nil
	}
	select {
	case <-e.over:
		return nil
	case <-m.cfg.Clock.After(replaceTimeout):
		return fmt.Errorf("device plugin already connected: %s", socket)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// find returns the plugin of a resource and a socket; nil if there is none.
func (m *Manager) find(resource, socket string) *endpoint {
	for _, e := range m.plugins[resource] {
		if e.socket == socket {
			return e
		}
	}
	return nil
}

// add adds a plugin and starts its stream.
func (m *Manager) add(e *endpoint) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	connected := 0
	for _, list := range m.plugins {
		connected += len(list)
	}
	switch {
	case m.ctx == nil || m.ctx.Err() != nil:
		return errors.New("the registration of device plugins has not begun, or has ended")
	case m.find(e.resource, e.socket) != nil:
		return fmt.Errorf("device plugin already connected: %s", e.socket)
	case connected >= maxPlugins:
		return fmt.Errorf("there are %d device plugins already", connected)
	case len(m.plugins[e.resource]) == 0 && !m.book.Manages(e.resource) && len(m.book.Registered()) >= maxResources:
		return fmt.Errorf("there are %d resources of device plugins already", maxResources)
	}
	ctx, cancel := context.WithCancel(m.ctx)
	e.cancel = cancel
	m.plugins[e.resource] = append(m.plugins[e.resource], e)
	m.group.Go(func() { m.follow(ctx, e) })
	return nil
}

// follow follows the devices of a plugin until it ends or is disconnected.
func (m *Manager) follow(ctx context.Context, e *endpoint) {
	defer close(e.over)
	err := m.stream(ctx, e)
	m.drop(e)
	if ctx.Err() == nil {
		m.cfg.Logger.Warn("a device plugin has ended its list of devices; new pods do not get its devices until it registers again",
			keyResource, e.resource, telemetry.KeyFile, e.socket, telemetry.KeyError, err)
	}
	e.cancel()
	if err := e.conn.Close(); err != nil {
		m.cfg.Logger.Warn("cannot close the connection to a device plugin", keyResource, e.resource,
			telemetry.KeyError, err)
	}
}

func (m *Manager) stream(ctx context.Context, e *endpoint) error {
	watch, err := e.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	for {
		list, err := watch.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("ListAndWatch has ended")
		}
		if err != nil {
			return err
		}
		m.report(e, list.GetDevices())
	}
}

// drop removes a plugin. If it was the last one of its resource, nothing of the resource is allocatable any more, and
// its grace period begins. At the end of this process the devices stay as they are.
func (m *Manager) drop(e *endpoint) {
	m.mu.Lock()
	e.ended = true
	list := slices.DeleteFunc(m.plugins[e.resource], func(other *endpoint) bool { return other == e })
	m.plugins[e.resource] = list
	last := len(list) == 0 && m.ctx.Err() == nil
	if len(list) == 0 {
		delete(m.plugins, e.resource)
		m.options[e.resource] = e.options
	}
	if last {
		m.book.Lose(e.resource)
		m.lost[e.resource] = m.cfg.Clock.Now()
	}
	m.mu.Unlock()
	if last {
		m.cfg.Changed()
		m.look()
	}
}

// disconnect ends the plugin of a socket and waits until its stream has ended.
func (m *Manager) disconnect(ctx context.Context, resource, socket string) {
	m.mu.Lock()
	e := m.find(resource, socket)
	m.mu.Unlock()
	if e == nil {
		return
	}
	e.cancel()
	select {
	case <-e.over:
	case <-ctx.Done():
	}
}

// plugin returns the plugin that gets the calls for a resource; nil if there is none.
func (m *Manager) plugin(resource string) *endpoint {
	list := m.plugins[resource]
	if len(list) == 0 {
		return nil
	}
	return list[len(list)-1]
}
