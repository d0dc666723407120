package debugapi

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	"github.com/quartet-node/quartet/internal/runtimecalls"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestCallsOfTheRuntimeAreWatched(t *testing.T) {
	tap := &runtimecalls.Tap{}
	r := serveCalls(t, tap)
	watch, err := r.WatchRuntimeCalls(t.Context(), &debugv1.WatchRuntimeCallsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.GetCall() != nil {
		t.Fatalf("the first message is %v, error %v, want an empty one", first, err)
	}
	tap.Event(&runtimeapi.ContainerEventResponse{ContainerId: "c"})
	if second, err := watch.Recv(); err != nil || second.GetCall().GetMethod() != "GetContainerEvents" {
		t.Errorf("the second message is %v, error %v, want the event", second, err)
	}
	if err := r.conn.Close(); err != nil {
		t.Error(err)
	}
	eventually.That(t, "nobody watches after the caller has gone", func() bool { return !tap.Watched() })
}

func TestAProcessWithoutARuntimeHasNoCalls(t *testing.T) {
	watch, err := serve(t).WatchRuntimeCalls(t.Context(), &debugv1.WatchRuntimeCallsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("it ends with %v, want %v", err, codes.FailedPrecondition)
	}
}
