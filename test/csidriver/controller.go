package csidriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// topologyKey is the label of the nodes that a volume can be used on.
const topologyKey = "quartet.test/zone"

// Plugin is a whole driver: the node service of Driver, the identity service, and the controller service. The volumes
// of all its processes are in one directory, as in a storage system that every node reaches.
type Plugin struct {
	*Driver
	csi.UnimplementedControllerServer

	name, node string
}

// volumeFile is what is known of a volume besides its content.
type volumeFile struct {
	Bytes int64 `json:"bytes"`
	Block bool  `json:"block"`
	// Nodes are those that the volume is attached to.
	Nodes []string `json:"nodes,omitempty"`
}

// NewPlugin returns a driver of a name for a node, with a directory of volumes and the path of its socket.
func NewPlugin(name, node, volumes, socket string) *Plugin {
	d := New(volumes, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	d.socket = socket
	return &Plugin{Driver: d, name: name, node: node}
}

// Serve serves all services until Stop.
func (p *Plugin) Serve() error {
	if err := os.Remove(p.socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(p.intercept))
	csi.RegisterNodeServer(server, p)
	csi.RegisterIdentityServer(server, p)
	csi.RegisterControllerServer(server, p)
	p.mu.Lock()
	p.server = server
	p.mu.Unlock()
	p.running.Go(func() { _ = server.Serve(listener) }) // it ends with Stop
	return nil
}

// GetPluginInfo implements csi.IdentityServer.
func (p *Plugin) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: p.name, VendorVersion: "1"}, nil
}

// Probe implements csi.IdentityServer.
func (p *Plugin) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (p *Plugin) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
			Type: csi.PluginCapability_Service_CONTROLLER_SERVICE,
		}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

// NodeGetInfo implements csi.NodeServer. From here the controllers know the node.
func (p *Plugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	if err := os.MkdirAll(p.nodeFile(p.node), 0o755); err != nil {
		return nil, err
	}
	return &csi.NodeGetInfoResponse{
		NodeId: p.node, MaxVolumesPerNode: 20,
		AccessibleTopology: &csi.Topology{Segments: map[string]string{topologyKey: "a"}},
	}, nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (p *Plugin) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	answer := &csi.ControllerGetCapabilitiesResponse{}
	for _, can := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: can}},
		})
	}
	return answer, nil
}

// CreateVolume implements csi.ControllerServer. The ID of a volume is its name.
func (p *Plugin) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	file := volumeFile{Bytes: max(r.GetCapacityRange().GetRequiredBytes(), 1<<20)}
	for _, capability := range r.GetVolumeCapabilities() {
		file.Block = file.Block || capability.GetBlock() != nil
	}
	if before, err := p.read(r.GetName()); err == nil {
		limit := r.GetCapacityRange().GetLimitBytes()
		if before.Bytes < r.GetCapacityRange().GetRequiredBytes() || limit > 0 && before.Bytes > limit {
			return nil, status.Errorf(codes.AlreadyExists, "the volume %q has %d bytes", r.GetName(), before.Bytes)
		}
		file = before
	}
	if err := os.MkdirAll(p.Volume(r.GetName()), 0o755); err != nil {
		return nil, err
	}
	if file.Block {
		device, err := os.OpenFile(p.Volume(r.GetName())+".img", os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(device.Truncate(file.Bytes), device.Close()); err != nil {
			return nil, err
		}
	}
	if err := p.write(r.GetName(), file); err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.GetName(), CapacityBytes: file.Bytes}}, nil
}

// DeleteVolume implements csi.ControllerServer.
func (p *Plugin) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := r.GetVolumeId()
	if file, err := p.read(id); err == nil && len(file.Nodes) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "the volume is attached to %q", file.Nodes)
	}
	return &csi.DeleteVolumeResponse{}, errors.Join(
		os.RemoveAll(p.Volume(id)), os.RemoveAll(p.Volume(id)+".img"), os.RemoveAll(p.file(id)),
	)
}

// ControllerPublishVolume implements csi.ControllerServer.
func (p *Plugin) ControllerPublishVolume(
	_ context.Context, r *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	if _, err := os.Stat(p.nodeFile(r.GetNodeId())); err != nil {
		return nil, status.Errorf(codes.NotFound, "there is no node %q", r.GetNodeId())
	}
	err := p.change(r.GetVolumeId(), func(file *volumeFile) {
		if !slices.Contains(file.Nodes, r.GetNodeId()) {
			file.Nodes = append(file.Nodes, r.GetNodeId())
		}
	})
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"node": r.GetNodeId()}}, err
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (p *Plugin) ControllerUnpublishVolume(
	_ context.Context, r *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	err := p.change(r.GetVolumeId(), func(file *volumeFile) {
		file.Nodes = slices.DeleteFunc(file.Nodes, func(node string) bool { return node == r.GetNodeId() })
	})
	if status.Code(err) == codes.NotFound {
		err = nil
	}
	return &csi.ControllerUnpublishVolumeResponse{}, err
}

// ControllerExpandVolume implements csi.ControllerServer.
func (p *Plugin) ControllerExpandVolume(
	_ context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	size := r.GetCapacityRange().GetRequiredBytes()
	err := p.change(r.GetVolumeId(), func(file *volumeFile) { file.Bytes = max(file.Bytes, size) })
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: size, NodeExpansionRequired: true}, err
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (p *Plugin) ValidateVolumeCapabilities(
	_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if !p.has(r.GetVolumeId()) {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", r.GetVolumeId())
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: r.GetVolumeCapabilities(),
	}}, nil
}

// nodeFile is the path of a directory that is there if a node is.
func (p *Plugin) nodeFile(node string) string {
	return filepath.Join(p.dir, "nodes", strings.ReplaceAll(node, "/", "_"))
}

// file is the path of a volume's file.
func (p *Plugin) file(id string) string { return p.Volume(id) + ".json" }

func (p *Plugin) read(id string) (file volumeFile, err error) {
	content, err := os.ReadFile(p.file(id))
	if err != nil {
		return file, err
	}
	return file, json.Unmarshal(content, &file)
}

// write replaces a volume's file, which other processes read.
func (p *Plugin) write(id string, file volumeFile) error {
	content, err := json.Marshal(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(p.file(id)), 0o755); err != nil {
		return err
	}
	next := fmt.Sprintf("%s.%d", p.file(id), os.Getpid())
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, p.file(id))
}

// change changes the file of an existing volume.
func (p *Plugin) change(id string, edit func(*volumeFile)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	file, err := p.read(id)
	if errors.Is(err, os.ErrNotExist) {
		return status.Errorf(codes.NotFound, "there is no volume %q", id)
	}
	if err != nil {
		return err
	}
	edit(&file)
	return p.write(id, file)
}
