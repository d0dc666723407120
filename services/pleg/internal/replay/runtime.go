package replay

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/services/pleg/internal/relist"
)

// The calls of an inspection and of a list of everything. Those about one object are followed by its ID.
const (
	listSandboxes   = "ListPodSandbox"
	listContainers  = "ListContainers"
	sandboxStatus   = "PodSandboxStatus "
	containerStatus = "ContainerStatus "
)

// answer is a recorded answer, or the code of its error.
type answer struct {
	code     int32
	response proto.Message
}

// responseOf returns the message of an answer; nil if the call has failed.
func responseOf[M proto.Message](a answer) M {
	response, _ := a.response.(M)
	return response
}

// runtime has the recorded answers of one inspection, or of one list of everything.
type runtime map[string]answer

// service answers calls from a recording.
type service struct {
	internalapi.RuntimeService // pleg makes no other calls

	answers runtime
	// asked has the calls that were made.
	asked map[string]bool
	// missing is the call that is not in the recording; empty if all are.
	missing string
}

func newService(answers runtime) *service {
	return &service{answers: answers, asked: map[string]bool{}}
}

func (s *service) answer(call string) (answer, error) {
	s.asked[call] = true
	a, has := s.answers[call]
	if !has {
		s.missing = call
		return answer{}, relist.ErrNotRecorded
	}
	if a.code != 0 {
		code := codes.Code(uint32(a.code)) //nolint:gosec // codes are small
		return answer{}, status.Error(code, "the reason is not recorded")
	}
	return a, nil
}

// ListPodSandbox implements the CRI.
func (s *service) ListPodSandbox(
	context.Context, *runtimeapi.PodSandboxFilter,
) ([]*runtimeapi.PodSandbox, error) {
	a, err := s.answer(listSandboxes)
	return responseOf[*runtimeapi.ListPodSandboxResponse](a).GetItems(), err
}

// ListContainers implements the CRI.
func (s *service) ListContainers(context.Context, *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	a, err := s.answer(listContainers)
	return responseOf[*runtimeapi.ListContainersResponse](a).GetContainers(), err
}

// PodSandboxStatus implements the CRI.
func (s *service) PodSandboxStatus(
	_ context.Context, id string, _ bool,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	a, err := s.answer(sandboxStatus + id)
	return responseOf[*runtimeapi.PodSandboxStatusResponse](a), err
}

// ContainerStatus implements the CRI.
func (s *service) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	a, err := s.answer(containerStatus + id)
	return responseOf[*runtimeapi.ContainerStatusResponse](a), err
}
