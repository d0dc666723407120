package csidriver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registration answers the node agent that registers the driver.
type registration struct {
	registerapi.UnimplementedRegistrationServer

	name, endpoint string
}

// Register serves the registration of a driver in the directory of the node agent's plugins until ctx ends. endpoint is
// the path of the driver's socket as the node agent sees it.
func Register(ctx context.Context, dir, name, endpoint string) error {
	socket := filepath.Join(dir, name+"-reg.sock")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, registration{name: name, endpoint: endpoint})
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// GetInfo implements registerapi.RegistrationServer.
func (r registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer.
func (r registration) NotifyRegistrationStatus(
	_ context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	slog.Info("the node agent has registered the driver", "ok", s.GetPluginRegistered(), "error", s.GetError())
	return &registerapi.RegistrationStatusResponse{}, nil
}
