package deviceplugins

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/quartet-node/quartet/internal/resourcename"
	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/internal/telemetry"
)

// socketMode is the mode of the kubelet's socket with the usual umask: only root can connect.
const socketMode = 0o755

// socket returns the path of the kubelet's socket for registrations.
func (m *Manager) socket() string {
	return filepath.Join(m.dir, filepath.Base(pluginapi.KubeletSocket))
}

// listen listens on the socket.
func (m *Manager) listen() (net.Listener, error) {
	path := m.socket()
	listener, err := rpc.ListenUnix("unix://"+path, nil, m.cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("listen for device plugins: %w", err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return nil, errors.Join(fmt.Errorf("set the mode of %s: %w", path, err), listener.Close())
	}
	return listener, nil
}

// serve serves registrations until ctx ends, and then returns nil.
func (m *Manager) serve(ctx context.Context) error {
	listener, err := m.listen()
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(server, registration{manager: m})
	defer server.Stop()
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) && ctx.Err() == nil {
		return fmt.Errorf("serve the registration of device plugins: %w", err)
	}
	return nil
}

// registration serves the registration of device plugins.
type registration struct {
	pluginapi.UnimplementedRegistrationServer

	manager *Manager
}

// Register connects to a plugin. Its errors are the kubelet's.
func (r registration) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	m, name := r.manager, request.GetResourceName()
	err := validate(name, request.GetVersion())
	if err == nil {
		m.cfg.Metrics.registered(name) // counted by name only if the name is valid, so that nonsense makes no labels
		err = m.connect(ctx, name, filepath.Join(m.dir, request.GetEndpoint()))
	}
	if err != nil {
		m.cfg.Logger.Warn("a device plugin is not registered", keyResource, name, "endpoint", request.GetEndpoint(),
			telemetry.KeyError, err)
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func validate(resource, version string) error {
	if !slices.Contains(pluginapi.SupportedVersions[:], version) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", version,
			pluginapi.SupportedVersions)
	}
	if !resourcename.IsExtended(resource) {
		return fmt.Errorf("the ResourceName %q is invalid", resource)
	}
	return nil
}

// Validate returns why a plugin that the plugin manager has found cannot be registered for a resource, in the kubelet's
// words; nil if it can.
func (m *Manager) Validate(resource string, versions []string) error {
	if !slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }) {
		return fmt.Errorf("manager version, %s, is not among plugin supported versions %v", pluginapi.Version, versions)
	}
	if !resourcename.IsExtended(resource) {
		return fmt.Errorf("invalid name of device plugin socket: the ResourceName %q is invalid", resource)
	}
	return nil
}

// Connect registers the plugin of a socket that the plugin manager has found, and Disconnect undoes it.
func (m *Manager) Connect(ctx context.Context, resource, socket string) error {
	return m.connect(ctx, resource, socket)
}

// Disconnect ends the connection to the plugin of a socket.
func (m *Manager) Disconnect(ctx context.Context, resource, socket string) {
	m.disconnect(ctx, resource, socket)
}
