package inspection

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

func TestNewestIsFirstAlsoWhenTheClockWasSetBack(t *testing.T) {
	at := func(hour int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC))
	}
	s := finish(&lifecyclev1.PodStatus{
		Sandboxes: []*lifecyclev1.Sandbox{
			{Id: "s0", Attempt: 0, CreatedAt: at(9)},
			{Id: "s1", Attempt: 1, CreatedAt: at(8)}, // the clock was set back by more than an hour
		},
		Containers: []*lifecyclev1.Container{
			{Id: "a0", Name: "a", Attempt: 0, CreatedAt: at(9)},
			{Id: "b0", Name: "b", Attempt: 0, CreatedAt: at(10)},
			{Id: "a1", Name: "a", Attempt: 1, CreatedAt: at(8)},
		},
	})
	var got []string
	for _, sandbox := range s.GetSandboxes() {
		got = append(got, sandbox.GetId())
	}
	for _, c := range s.GetContainers() {
		got = append(got, c.GetId())
	}
	if want := []string{"s1", "s0", "b0", "a1", "a0"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", fmt.Sprint(got), want)
	}
}
