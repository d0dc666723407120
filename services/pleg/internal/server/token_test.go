package server_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
)

// TestTokensSayHowNewAnObservationMustBe, for callers that do not have pleg's clock.
func TestTokensSayHowNewAnObservationMustBe(t *testing.T) {
	fake := fakecri.New(t)
	fake.RunPod(fakecri.Pod{UID: "uid-1", Containers: []string{"app"}})
	relister, srv := start(t, fake, clocktesting.NewFakeClock(time.Now()))
	eventually.That(t, "the first relist has finished", func() bool {
		select {
		case <-relister.Synced():
			return true
		default:
			return false
		}
	})
	get := func(req *lifecyclev1.GetPodStatusRequest) (answer *lifecyclev1.GetPodStatusResponse, inspected bool) {
		t.Helper()
		req.Uid = "uid-1"
		fake.ResetCalls()
		answer, err := srv.GetPodStatus(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return answer, fake.Count("ListPodSandbox", "uid-1") > 0
	}
	first, _ := get(&lifecyclev1.GetPodStatusRequest{})
	asked, inspected := get(&lifecyclev1.GetPodStatusRequest{NewerThanRequest: true})
	if !inspected {
		t.Error("newer_than_request is answered without an inspection")
	}
	if _, inspected := get(&lifecyclev1.GetPodStatusRequest{NewerThan: first.GetToken()}); inspected {
		t.Error("the record is newer than the token of the first answer, and the runtime was asked again")
	}
	// The inspection for a request began after the token of its answer.
	if _, inspected := get(&lifecyclev1.GetPodStatusRequest{NewerThan: asked.GetToken()}); inspected {
		t.Error("the record is newer than the token of its own answer, and the runtime was asked again")
	}
	later, _ := get(&lifecyclev1.GetPodStatusRequest{})
	if _, inspected := get(&lifecyclev1.GetPodStatusRequest{NewerThan: later.GetToken()}); !inspected {
		t.Error("the record is older than the token, and was taken")
	}
	if _, inspected := get(&lifecyclev1.GetPodStatusRequest{NewerThan: []byte("another/1")}); !inspected {
		t.Error("a token of another pleg is taken for one of this")
	}
	for _, wrong := range []string{"x", "/1", "a/", "a/-1", "a/x"} {
		_, err := srv.GetPodStatus(t.Context(), &lifecyclev1.GetPodStatusRequest{Uid: "uid-1", NewerThan: []byte(wrong)})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("the token %q gets %v", wrong, err)
		}
	}
	list, err := srv.ListPodStatuses(t.Context(), &lifecyclev1.ListPodStatusesRequest{})
	if err != nil || len(list.GetToken()) == 0 {
		t.Errorf("ListPodStatuses() has the token %q, %v", list.GetToken(), err)
	}
}
