package server

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	"github.com/quartet-node/quartet/services/configmux/internal/localsource"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

func TestWithoutTheSourceNothingCanBeApplied(t *testing.T) {
	s := New(Config{})
	_, apply := s.ApplyPod(t.Context(), &configv1.ApplyPodRequest{})
	_, remove := s.DeletePod(t.Context(), &configv1.DeletePodRequest{})
	if status.Code(apply) != codes.Unimplemented || status.Code(remove) != codes.Unimplemented {
		t.Errorf("ApplyPod: %v, DeletePod: %v, want UNIMPLEMENTED", apply, remove)
	}
}

// kept is a source that accepts everything.
type kept struct{ applied []string }

func (k *kept) Apply(_ context.Context, pod *v1.Pod, _ bool) (localsource.Applied, error) {
	k.applied = append(k.applied, pod.Name)
	return localsource.Applied{Pod: pod}, nil
}

func (*kept) Delete(context.Context, types.NamespacedName) error { return nil }

// Another source may have the name, which is unknown before it was read.
func TestNothingIsAppliedBeforeTheOtherSourcesWereRead(t *testing.T) {
	opening, local := make(chan struct{}), &kept{}
	s := New(Config{Opening: opening, Local: local})
	data, err := (&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	given, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := s.ApplyPod(
		given,
		&configv1.ApplyPodRequest{Pod: data},
	); status.Code(err) != codes.Canceled ||
		len(local.applied) > 0 {
		t.Errorf("before: %v, applied %v; want a call that waits", err, local.applied)
	}
	close(opening)
	if _, err := s.ApplyPod(t.Context(), &configv1.ApplyPodRequest{Pod: data}); err != nil || len(local.applied) != 1 {
		t.Errorf("after: %v, applied %v", err, local.applied)
	}
}

func TestErrorsHaveTheCodesOfTheContract(t *testing.T) {
	name := types.NamespacedName{Namespace: "default", Name: "a"}
	for want, err := range map[codes.Code]error{
		codes.InvalidArgument: &localsource.InvalidError{Problems: []staticpod.Problem{{Field: "spec",
			Message: "is wrong"}}},
		codes.AlreadyExists:      &localsource.TakenError{Pod: name},
		codes.NotFound:           &localsource.UnknownError{Name: name},
		codes.FailedPrecondition: &localsource.AmbiguousError{Exact: name, Suffixed: name},
		codes.ResourceExhausted:  &localsource.FullError{What: "pods", Number: 1},
		codes.Unavailable:        localsource.ErrEnded,
		codes.DeadlineExceeded:   context.DeadlineExceeded,
		codes.Internal:           errors.New("no space left on device"),
	} {
		if got := status.Code(statusOf(err)); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}
