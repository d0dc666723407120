package podstore_test

import (
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
)

// TestWhichPodsHoldSomethingOfTheNode: running and terminating pods are active; rejected and ended pods are not.
func TestWhichPodsHoldSomethingOfTheNode(t *testing.T) {
	s := newStore(t, nil)
	if _, err := s.Active(); !errors.As(err, new(*podstore.NotReadyError)) {
		t.Errorf("before anything is known: %v", err)
	}
	s.Open()
	s.SetWaiting("")
	for _, name := range []string{"web", "refused", "ending", "ended", "unwanted", "orphan"} {
		source := "file"
		if name == "orphan" {
			source = ""
		}
		pod := fakenode.Pod("u-"+name, name, v1.RestartPolicyAlways)
		s.SetPod(pod, source, "")
	}
	s.SetState("u-web", podworkers.Syncing)
	for _, name := range []string{"refused", "ending", "ended"} {
		if err := s.Evict(types.UID("u-"+name), podstore.Eviction{Reason: "OutOfcpu"}); err != nil {
			t.Fatal(err)
		}
	}
	s.SetState("u-ending", podworkers.Terminating)
	s.SetState("u-ended", podworkers.Terminated)
	s.Unwant("u-unwanted")
	pods, err := s.Active()
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	if err != nil || !slices.Equal(names, []string{"ending", "web"}) {
		t.Errorf("got %v, error %v, want %v", names, err, []string{"ending", "web"})
	}
}
