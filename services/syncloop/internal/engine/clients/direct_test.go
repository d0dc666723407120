package clients_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/clients"
	"github.com/quartet-node/quartet/test/logbuffer"
)

// oneSandbox is a runtime with one sandbox of a pod.
type oneSandbox struct {
	internalapi.RuntimeService
	uid string
	err error
}

func (r oneSandbox) ListPodSandbox(
	_ context.Context, filter *runtimeapi.PodSandboxFilter,
) ([]*runtimeapi.PodSandbox, error) {
	if r.err != nil || filter.GetLabelSelector()[podlabels.PodUID] != r.uid {
		return nil, r.err
	}
	return []*runtimeapi.PodSandbox{{Id: "s"}}, nil
}

func (r oneSandbox) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	return nil, r.err
}

func (r oneSandbox) PodSandboxStatus(context.Context, string, bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: "s", State: runtimeapi.PodSandboxState_SANDBOX_READY,
	}}, r.err
}

// scripted answers as a function says, and counts the calls.
type scripted struct {
	answer func(ctx context.Context) (*lifecyclev1.PodStatus, error)
	calls  int
}

func (s *scripted) GetPodStatus(
	ctx context.Context, _ types.UID, _ time.Duration,
) (*lifecyclev1.PodStatus, error) {
	s.calls++
	return s.answer(ctx)
}

func TestAPodThatEndsIsObservedAtTheRuntimeWhilePLEGDoesNotAnswer(t *testing.T) {
	now := time.Hour
	hangs := func(ctx context.Context) (*lifecyclev1.PodStatus, error) {
		deadline, ok := ctx.Deadline()
		if !ok || time.Until(deadline) > 3*time.Second {
			t.Errorf("pleg has until %v, %v", deadline, ok)
		}
		return nil, status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	}
	pleg := &scripted{answer: hangs}
	var log logbuffer.Buffer
	runtime := oneSandbox{uid: "u"}
	direct := &clients.Direct{
		PLEG: pleg, Clock: clock.RealClock{}, BootTime: func() time.Duration { return now },
		Runtime: func() (internalapi.RuntimeService, error) { return runtime, nil },
		Logger:  slog.New(slog.NewTextHandler(&log, nil)),
	}
	seen := func() *lifecyclev1.PodStatus {
		t.Helper()
		observed, err := direct.GetPodStatus(t.Context(), "u", now-1)
		if err != nil {
			t.Fatal(err)
		}
		return observed
	}
	for range 2 {
		observed := seen()
		if len(observed.GetSandboxes()) != 1 || observed.GetObservedBoottimeNs() != int64(now) {
			t.Errorf("observed %v, want the runtime's sandbox at %v", observed, now)
		}
	}
	if pleg.calls != 1 || strings.Count(log.String(), "pleg does not answer") != 1 {
		t.Errorf("pleg was asked %d times, want once; the log is %q", pleg.calls, log.String())
	}
	now += 10 * time.Second
	pleg.answer = func(context.Context) (*lifecyclev1.PodStatus, error) {
		return &lifecyclev1.PodStatus{Uid: "pleg's"}, nil
	}
	if got := seen().GetUid(); got != "pleg's" {
		t.Errorf("a pleg that is back: the status is of %q, want %q", got, "pleg's")
	}
	refusal := status.Error(codes.Internal, "refused")
	pleg.answer = func(context.Context) (*lifecyclev1.PodStatus, error) { return nil, refusal }
	if _, err := direct.GetPodStatus(t.Context(), "u", 0); !errors.Is(err, refusal) {
		t.Errorf("an error that pleg answers: got %v, want %v", err, refusal)
	}
	pleg.answer, runtime.err = hangs, status.Error(codes.Unavailable, "away")
	_, err := direct.GetPodStatus(t.Context(), "u", 0)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "ask the runtime for the pod") {
		t.Errorf("both are away: got %v", err)
	}
}
