package bundle_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/bundle"
	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/test/harness"
)

// stubborn is a runtime that cannot stop some of its pods.
type stubborn struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	pods []string

	mu      sync.Mutex
	removed []string
}

func (s *stubborn) ListPodSandbox(
	context.Context,
	*runtimeapi.ListPodSandboxRequest,
) (*runtimeapi.ListPodSandboxResponse, error) {
	list := new(runtimeapi.ListPodSandboxResponse)
	for _, id := range s.pods {
		list.Items = append(
			list.Items,
			&runtimeapi.PodSandbox{Id: id, Metadata: &runtimeapi.PodSandboxMetadata{Name: id, Namespace: "default"}},
		)
	}
	return list, nil
}

func (*stubborn) ListContainers(
	context.Context,
	*runtimeapi.ListContainersRequest,
) (*runtimeapi.ListContainersResponse, error) {
	return new(runtimeapi.ListContainersResponse), nil
}

func (*stubborn) StopPodSandbox(
	_ context.Context,
	r *runtimeapi.StopPodSandboxRequest,
) (*runtimeapi.StopPodSandboxResponse, error) {
	if strings.HasPrefix(r.GetPodSandboxId(), "stays") {
		return nil, status.Error(codes.Internal, "it does not stop")
	}
	return new(runtimeapi.StopPodSandboxResponse), nil
}

func (s *stubborn) RemovePodSandbox(
	_ context.Context,
	r *runtimeapi.RemovePodSandboxRequest,
) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, r.GetPodSandboxId())
	return new(runtimeapi.RemovePodSandboxResponse), nil
}

// TestAPodThatCannotBeRemovedKeepsNoOther: pods are removed even after more failures than parallel removals, and the
// error names each pod that was not removed.
func TestAPodThatCannotBeRemovedKeepsNoOther(t *testing.T) {
	l, err := layout.New(filepath.Join(harness.ShortDir(t), "state"))
	if err != nil {
		t.Fatal(err)
	}
	runtime := new(stubborn)
	const failures = 20
	for i := range failures {
		runtime.pods = append(runtime.pods, fmt.Sprint("stays-", i))
	}
	want := []string{"goes-0", "goes-1", "goes-2"}
	runtime.pods = append(runtime.pods, want...)
	if err := os.MkdirAll(filepath.Dir(l.RuntimeSocket()), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", l.RuntimeSocket())
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, runtime)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	err = bundle.New(bundle.Config{Layout: l}).RemovePods(t.Context(), time.Second)
	for _, id := range runtime.pods[:failures] {
		if err == nil || !strings.Contains(err.Error(), "default/"+id+": ") {
			t.Errorf("it is not said that %s stays: %v", id, err)
		}
	}
	slices.Sort(runtime.removed)
	if !slices.Equal(runtime.removed, want) {
		t.Errorf("removed %q, want %q", runtime.removed, want)
	}
}
