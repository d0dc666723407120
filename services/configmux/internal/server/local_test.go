package server

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

func TestWithoutTheSourceNothingCanBeApplied(t *testing.T) {
	s := New(nil, nil, nil)
	_, apply := s.ApplyPod(t.Context(), &configv1.ApplyPodRequest{})
	_, remove := s.DeletePod(t.Context(), &configv1.DeletePodRequest{})
	if status.Code(apply) != codes.Unimplemented || status.Code(remove) != codes.Unimplemented {
		t.Errorf("ApplyPod: %v, DeletePod: %v, want UNIMPLEMENTED", apply, remove)
	}
}

func TestErrorsHaveTheCodesOfTheContract(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "a"}
	for want, err := range map[codes.Code]error{
		codes.InvalidArgument:    &localsource.InvalidError{Problems: []staticpod.Problem{{Field: "spec", Message: "is wrong"}}},
		codes.AlreadyExists:      &localsource.TakenError{Pod: name},
		codes.NotFound:           &localsource.UnknownError{Name: name},
		codes.FailedPrecondition: &localsource.AmbiguousError{Exact: name, Suffixed: name},
		codes.ResourceExhausted:  &localsource.FullError{Pods: 1},
		codes.Unavailable:        localsource.ErrEnded,
		codes.DeadlineExceeded:   context.DeadlineExceeded,
		codes.Internal:           errors.New("no space left on device"),
	} {
		if got := status.Code(statusOf(err)); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}
