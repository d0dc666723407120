// Package oracle_test compares the calls of package csi with those of the kubelet's own CSI plugin. Both use upstream's
// mock driver, over its socket. A driver by other authors also shows what the driver of the other tests cannot: it
// mounts nothing, and publishes a block device as a directory.
package oracle_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

const driverName = "mock.quartet.test"

// mock is upstream's mock driver, which records its calls.
type mock struct {
	socket string

	mu    sync.Mutex
	calls []string
}

// newMock serves a driver until the end of the test. Paths below root are recorded as if root were ROOT.
func newMock(t *testing.T, dir, root string, config service.Config) *mock {
	t.Helper()
	m := &mock{socket: filepath.Join(dir, "mock.sock")}
	config.DriverName = driverName
	mocked := service.New(config)
	server := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mocked, Identity: mocked, Node: mocked})
	listener, err := net.Listen("unix", m.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(listener, m.record(root)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return m
}

// record returns an interceptor that records calls, except those for capabilities, which change nothing.
func (m *mock) record(root string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (
		answer any, err error,
	) {
		method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
		if method != "NodeGetCapabilities" {
			m.mu.Lock()
			m.calls = append(m.calls, method+" "+strings.ReplaceAll(textOf(request), root, "ROOT"))
			m.mu.Unlock()
		}
		publish, ok := request.(*csispec.NodePublishVolumeRequest)
		if ok && publish.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
			// The driver looks for the volume that it does not have, and dies. It does no more than this.
			service.MockVolumes[publish.GetVolumeId()] = service.Volume{ISEphemeral: true}
			return &csispec.NodePublishVolumeResponse{}, nil
		}
		return handle(ctx, request)
	}
}

// textOf returns a message as text that is the same for the same content.
func textOf(request any) string {
	message, ok := request.(proto.Message)
	if !ok {
		return fmt.Sprint(request)
	}
	text, err := protojson.MarshalOptions{Multiline: true}.Marshal(message)
	if err != nil {
		return err.Error()
	}
	// protojson varies its white space on purpose.
	return strings.Join(strings.Fields(string(text)), " ")
}

// seen returns the recorded calls.
func (m *mock) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

// count returns the number of calls of a method.
func (m *mock) count(method string) int {
	return len(slices.DeleteFunc(m.seen(), func(call string) bool { return !strings.HasPrefix(call, method+" ") }))
}
