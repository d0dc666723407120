// Package csidriver is a CSI driver for tests. Its volumes are directories, which it mounts as a driver does: it binds
// a volume to the staging path, and that to the path of each pod. So the mount table says what is staged and published,
// also after the driver was killed. It fails, hangs, loses its answer or dies at the calls that a test names, and notes
// what a node must never do.
package csidriver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Fault is what goes wrong at a call.
type Fault int

// The faults. All but Fails and Hangs do what the call asks first.
const (
	None Fault = iota
	// Fails answers with the code Internal.
	Fails
	// Hangs does not answer until the caller gives up.
	Hangs
	// Loses does what the call asks, and then hangs.
	Loses
	// Dies does what the call asks, and ends without an answer, as a process that is killed.
	Dies
)

// Driver is a driver. Create it with New.
type Driver struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedIdentityServer

	dir    string
	socket string
	can    []csi.NodeServiceCapability_RPC_Type

	mu     sync.Mutex
	server *grpc.Server
	faults map[string]Fault
	calls  []Call
	wrong  []string
	// measures is the answer of NodeGetVolumeStats; nil for a true one.
	measures *csi.NodeGetVolumeStatsResponse
	// ails has what is wrong with volumes, by handle.
	ails map[string]*csi.VolumeHealth
	// says is the text of the error of a call that fails; empty for one that names the call.
	says string
	// refuses is the code of NodeExpandVolume.
	refuses codes.Code
	// publishes are the staging paths by target.
	publishes map[string]string
	running   sync.WaitGroup
}

// Call is a call that the driver has received.
type Call struct {
	// Method is its short name, for example "NodeStageVolume".
	Method  string
	Request proto.Message
}

// New returns a driver that has its volumes and its socket in an existing directory. It is not served yet.
func New(dir string, can ...csi.NodeServiceCapability_RPC_Type) *Driver {
	return &Driver{
		dir: dir, socket: filepath.Join(dir, "csi.sock"), can: can, faults: map[string]Fault{}, publishes: map[string]string{},
	}
}

// Socket is the path of the driver's socket.
func (d *Driver) Socket() string { return d.socket }

// Volume is the directory of a volume's content.
func (d *Driver) Volume(handle string) string {
	const most = 200 // the name of a file has up to 255 bytes
	if len(handle) > most || handle == "." || handle == ".." || strings.ContainsAny(handle, "/\x00") {
		handle = fmt.Sprintf("%x", sha256.Sum256([]byte(handle)))
	}
	return filepath.Join(d.dir, "volumes", handle)
}

// has reports whether there is a volume, which is a directory or a device.
func (d *Driver) has(handle string) bool {
	_, err := os.Stat(d.Volume(handle))
	if os.IsNotExist(err) {
		_, err = os.Stat(d.Device(handle))
	}
	return err == nil
}

// Serve serves the driver until Stop.
func (d *Driver) Serve() error {
	if err := os.Remove(d.socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", d.socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterNodeServer(server, d)
	csi.RegisterIdentityServer(server, d)
	d.mu.Lock()
	d.server = server
	d.mu.Unlock()
	d.running.Go(func() { _ = server.Serve(listener) }) // it ends with Stop
	return nil
}

// Stop ends the driver and all its calls.
func (d *Driver) Stop() {
	d.mu.Lock()
	server := d.server
	d.mu.Unlock()
	if server != nil {
		server.Stop()
	}
	d.running.Wait()
}

// Set sets the fault of all calls of a method from now on.
func (d *Driver) Set(method string, f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults[method] = f
}

// Calls returns the calls of a method, or all calls but those for capabilities if it is empty.
func (d *Driver) Calls(method string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.calls), func(c Call) bool {
		return method != "" && c.Method != method || method == "" && c.Method == "NodeGetCapabilities"
	})
}

// Wrong returns what the node has done wrong, such as staging a volume at two paths.
func (d *Driver) Wrong() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.wrong)
}

// intercept records a call, and makes it go wrong.
func (d *Driver) intercept(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	d.mu.Lock()
	message, _ := request.(proto.Message)
	d.calls = append(d.calls, Call{method, message})
	fault, server, says := d.faults[method], d.server, d.says
	d.mu.Unlock()
	switch fault {
	case Fails:
		if says != "" {
			return nil, status.Error(codes.Internal, says)
		}
		return nil, status.Errorf(codes.Internal, "%s fails as asked, with %v", method, secretOf(request))
	case Hangs:
		<-ctx.Done()
		return nil, ctx.Err()
	case None, Loses, Dies:
	}
	if err := check(request); err != nil {
		return nil, err
	}
	answer, err := handle(ctx, request)
	switch fault {
	case Loses:
		<-ctx.Done()
		return nil, ctx.Err()
	case Dies:
		go server.Stop() // it waits for this call, which ends with its connection
		<-ctx.Done()
		return nil, ctx.Err()
	case None, Fails, Hangs:
	}
	return answer, err
}

// secretOf returns the secrets of a request, because a bad driver has them in its errors.
func secretOf(request any) map[string]string {
	if with, ok := request.(interface{ GetSecrets() map[string]string }); ok {
		return with.GetSecrets()
	}
	return nil
}

// is notes what is wrong unless a condition holds.
func (d *Driver) is(holds bool, format string, args ...any) {
	if !holds {
		d.wrong = append(d.wrong, fmt.Sprintf(format, args...))
	}
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	answer := &csi.NodeGetCapabilitiesResponse{}
	for _, one := range d.can {
		answer.Capabilities = append(answer.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: one}},
		})
	}
	return answer, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "machine-1"}, nil
}

// NodeStageVolume implements csi.NodeServer.
func (d *Driver) NodeStageVolume(
	_ context.Context, r *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	volume := d.Volume(r.GetVolumeId())
	if r.GetVolumeCapability().GetBlock() != nil {
		_, err := d.attach(r.GetVolumeId())
		return &csi.NodeStageVolumeResponse{}, err
	}
	if err := os.MkdirAll(volume, 0o755); err != nil {
		return nil, err
	}
	for _, at := range d.mountsOf(volume) {
		d.is(at == r.GetStagingTargetPath() || d.publishes[at] != "", "%s is staged at %s and at %s", r.GetVolumeId(), at, r.GetStagingTargetPath())
	}
	return &csi.NodeStageVolumeResponse{}, bind(volume, r.GetStagingTargetPath(), false)
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(
	_ context.Context, r *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for target, staging := range d.publishes {
		is, _ := mountinfo.Mounted(target)
		d.is(staging != r.GetStagingTargetPath() || !is, "%s is unstaged, but published at %s", r.GetVolumeId(), target)
	}
	if err := d.detach(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, unbind(r.GetStagingTargetPath())
}

// NodePublishVolume implements csi.NodeServer.
func (d *Driver) NodePublishVolume(
	_ context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	from := r.GetStagingTargetPath()
	if r.GetVolumeCapability().GetBlock() != nil {
		return &csi.NodePublishVolumeResponse{}, d.publishDevice(r)
	}
	if slices.Contains(d.can, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) && from != "" {
		is, _ := mountinfo.Mounted(from)
		d.is(is, "%s is published, but not staged at %q", r.GetVolumeId(), from)
	} else {
		from = d.Volume(r.GetVolumeId())
		if err := os.MkdirAll(from, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(r.GetTargetPath(), 0o750); err != nil {
		return nil, err
	}
	d.publishes[r.GetTargetPath()] = from
	return &csi.NodePublishVolumeResponse{}, bind(from, r.GetTargetPath(), r.GetReadonly())
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(
	_ context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := unbind(r.GetTargetPath()); err != nil {
		return nil, err
	}
	delete(d.publishes, r.GetTargetPath())
	if !slices.Contains(d.can, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) &&
		!slices.Contains(slices.Collect(maps.Values(d.publishes)), r.GetVolumeId()) {
		if err := d.detach(r.GetVolumeId()); err != nil {
			return nil, err
		}
	}
	if err := os.Remove(r.GetTargetPath()); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements csi.NodeServer: a volume has 1000 bytes, and as many are used as its handle has.
func (d *Driver) NodeGetVolumeStats(
	_ context.Context, r *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	if mounted, err := mountinfo.Mounted(r.GetVolumePath()); err != nil || !mounted {
		return nil, status.Errorf(codes.NotFound, "%s is not at %s: %v", r.GetVolumeId(), r.GetVolumePath(), err)
	}
	if d.measures != nil {
		return d.measures, nil
	}
	used := int64(len(r.GetVolumeId()))
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: volumeSize, Used: used, Available: volumeSize - used},
	}}, nil
}

// NodeGetVolumeHealth implements csi.NodeServer: a volume is healthy unless Ail was called.
func (d *Driver) NodeGetVolumeHealth(
	_ context.Context, r *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.has(r.GetVolumeId()) {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", r.GetVolumeId())
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: d.ails[r.GetVolumeId()]}, nil
}

// NodeGetStorageHealth implements csi.NodeServer: the storage is degraded.
func (d *Driver) NodeGetStorageHealth(
	context.Context, *csi.NodeGetStorageHealthRequest,
) (*csi.NodeGetStorageHealthResponse, error) {
	return &csi.NodeGetStorageHealthResponse{
		BackendHealth: []*csi.NodeGetStorageHealthResponse_StorageBackendHealth{
			{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "Degraded"},
		},
	}, nil
}

// Ail sets what is wrong with a volume from now on.
func (d *Driver) Ail(volume string, entries ...*csi.VolumeHealth_VolumeHealthEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ails == nil {
		d.ails = map[string]*csi.VolumeHealth{}
	}
	d.ails[volume] = &csi.VolumeHealth{VolumeId: volume, HealthStatuses: entries}
}

// NodeExpandVolume implements csi.NodeServer.
func (d *Driver) NodeExpandVolume(
	_ context.Context, r *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.has(r.GetVolumeId()) {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", r.GetVolumeId())
	}
	mounted, err := mountinfo.Mounted(r.GetVolumePath())
	d.is(err == nil && mounted, "%s is expanded, but not published at %s", r.GetVolumeId(), r.GetVolumePath())
	if d.refuses != codes.OK {
		return nil, status.Error(d.refuses, "the volume cannot be expanded")
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, nil
}

// Measure sets the answer of NodeGetVolumeStats from now on. Call it before Serve.
func (d *Driver) Measure(answer *csi.NodeGetVolumeStatsResponse) { d.measures = answer }

// Say sets the text of the errors of calls that fail from now on.
func (d *Driver) Say(text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.says = text
}

// Refuse sets the code with which the driver refuses to expand volumes from now on; codes.OK is none.
func (d *Driver) Refuse(code codes.Code) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuses = code
}

// volumeSize is the size of a volume in NodeGetVolumeStats.
const volumeSize = 1000

// mountsOf returns where a directory is mounted.
func (d *Driver) mountsOf(volume string) []string {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return []string{err.Error()}
	}
	var at []string
	for _, info := range infos {
		if strings.HasSuffix(volume, info.Root) && info.Root != "/" {
			at = append(at, info.Mountpoint)
		}
	}
	return at
}

// bind mounts a directory at another one, unless that is mounted.
func bind(from, at string, readOnly bool) error {
	if is, err := mountinfo.Mounted(at); err != nil || is {
		return err
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// unbind unmounts a directory, which may be missing or not mounted.
func unbind(at string) error {
	if is, err := mountinfo.Mounted(at); err != nil || !is {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	return unix.Unmount(at, unix.UMOUNT_NOFOLLOW)
}
