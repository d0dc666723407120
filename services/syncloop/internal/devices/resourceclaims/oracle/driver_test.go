package oracle

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
)

// driver is a DRA driver on a socket.
type driver struct {
	drav1.UnimplementedDRAPluginServer

	name, socket string

	mu     sync.Mutex
	broken string
	calls  []string
}

// serve serves a driver until the test ends.
func serve(t *testing.T, name string) *driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "dra") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{name: name, socket: filepath.Join(dir, "dra.sock")}
	listener, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	drav1.RegisterDRAPluginServer(server, d)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

// set sets the claim that the driver fails for; empty for none.
func (d *driver) set(broken string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = broken
}

// called returns the calls since the last time.
func (d *driver) called() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

// note records a call, and returns the claim that fails.
func (d *driver) note(call string, claims []*drav1.Claim) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var uids []string
	for _, c := range claims {
		uids = append(uids, c.GetUid())
	}
	slices.Sort(uids)
	d.calls = append(d.calls, call+" "+strings.Join(uids, " "))
	return d.broken
}

func (d *driver) NodePrepareResources(
	_ context.Context, r *drav1.NodePrepareResourcesRequest,
) (*drav1.NodePrepareResourcesResponse, error) {
	broken := d.note("prepare", r.GetClaims())
	out := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		out.Claims[c.GetUid()] = &drav1.NodePrepareResourceResponse{Devices: []*drav1.Device{
			{PoolName: "p", DeviceName: c.GetUid(), RequestNames: []string{"one"}, CdiDeviceIds: []string{d.name + "/x=" + c.GetUid()}},
			{PoolName: "p", DeviceName: "all", CdiDeviceIds: []string{d.name + "/x=all", d.name + "/y=" + c.GetName()}},
		}}
		if c.GetName() == broken {
			out.Claims[c.GetUid()] = &drav1.NodePrepareResourceResponse{Error: "it is broken"}
		}
	}
	return out, nil
}

func (d *driver) NodeUnprepareResources(
	_ context.Context, r *drav1.NodeUnprepareResourcesRequest,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	broken := d.note("unprepare", r.GetClaims())
	out := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		out.Claims[c.GetUid()] = &drav1.NodeUnprepareResourceResponse{}
		if c.GetName() == broken {
			out.Claims[c.GetUid()].Error = "it is broken"
		}
	}
	return out, nil
}
