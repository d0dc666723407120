package holders_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/holders"
)

const (
	created = lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
	running = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
	exited  = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
)

// container returns a container that was created at a second.
func container(id, name string, state lifecyclev1.ContainerState, second int64) *lifecyclev1.Container {
	return &lifecyclev1.Container{
		Id: id, Name: name, State: state, CreatedAt: timestamppb.New(time.Unix(second, 0)), Annotations: map[string]string{},
	}
}

// initContainer returns an init container that has ended.
func initContainer(id string, code int32) *lifecyclev1.Container {
	c := container(id, id, exited, 0)
	c.ExitCode, c.Annotations[podlabels.InitContainer] = code, "true"
	return c
}

func TestHolders(t *testing.T) {
	goesOn := func(uid types.UID) bool { return uid != "ended" }
	for name, tc := range map[string]struct {
		observed []*lifecyclev1.PodStatus
		want     []string
	}{
		"nothing": {},
		"a running container, also of a pod that ends": {
			[]*lifecyclev1.PodStatus{{Uid: "ended", Containers: []*lifecyclev1.Container{
				container("2", "main", running, 2), container("1", "main", exited, 1), container("0", "other", exited, 0),
			}}},
			[]string{"2"},
		},
		"the newest crashed container of each name": {
			[]*lifecyclev1.PodStatus{{Uid: "a", Containers: []*lifecyclev1.Container{
				container("4", "main", exited, 4), container("3", "other", created, 3), container("2", "main", exited, 2),
				container("1", "other", exited, 1),
			}}},
			[]string{"4", "3"},
		},
		"running ones come first, then newer ones": {
			[]*lifecyclev1.PodStatus{
				{Uid: "a", Containers: []*lifecyclev1.Container{container("1", "main", exited, 1)}},
				{Uid: "b", Containers: []*lifecyclev1.Container{container("2", "main", exited, 2)}},
				{Uid: "c", Containers: []*lifecyclev1.Container{container("0", "main", running, 0)}},
			},
			[]string{"0", "2", "1"},
		},
		"an init container that has failed, and not one that has succeeded": {
			[]*lifecyclev1.PodStatus{
				{Uid: "a", Containers: []*lifecyclev1.Container{initContainer("failed", 1), initContainer("succeeded", 0)}},
			},
			[]string{"failed"},
		},
	} {
		var got []string
		for _, h := range holders.Of(tc.observed, goesOn) {
			got = append(got, h.Container.GetId())
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}
