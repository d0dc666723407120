package deviceplugins_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/checkpoint"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestADamagedCheckpointIsRebuilt checks that the devices of running containers are found in the runtime, that no new
// pod gets one before, and that the plugin is asked for its answer again when the container is created again.
func TestADamagedCheckpointIsRebuilt(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
	web := pod("web", "1")
	must(t, r.Allocate(t.Context(), web))
	given, err := r.Give(t.Context(), web, &web.Spec.Containers[0])
	must(t, err)
	r.stop()
	p.stop()
	must(t, os.WriteFile(filepath.Join(r.dir(), checkpoint.File), []byte("{"), 0o600))
	r.start()
	p = r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
	if wait, err := r.Check(pod("next", "2")); !wait || err != nil {
		t.Errorf("a new pod waits %v, %v before it is known what runs", wait, err)
	}
	container := func(name string, state lifecyclev1.ContainerState, text string) *lifecyclev1.Container {
		return &lifecyclev1.Container{Name: name, State: state, Annotations: map[string]string{podlabels.Devices: text}}
	}
	const (
		running = lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING
		exited  = lifecyclev1.ContainerState_CONTAINER_STATE_EXITED
	)
	r.Recover([]*lifecyclev1.PodStatus{
		{Uid: "web", Containers: []*lifecyclev1.Container{
			container("main", running, given.Annotations[podlabels.Devices]),
		}},
		{Uid: "ended", Containers: []*lifecyclev1.Container{container("main", exited, `{"example.com/gpu":["b"]}`)}},
		{Uid: "odd", Containers: []*lifecyclev1.Container{container("main", running, "nonsense")}},
	}, func(uid types.UID) bool { return uid != "ended" })
	eventually.That(t, "the checkpoint is written", func() bool {
		content, err := checkpoint.Read(r.dir())
		return err == nil && len(content.Entries) == 1
	})
	p.stop()
	r.restart()
	p = r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
	if _, err := r.Check(pod("next", "2")); err == nil || r.devices("web") != "a" {
		t.Errorf("the pod has %q, another one can have all: %v", r.devices("web"), err)
	}
	for range 2 {
		if got := r.env(web); got != "GPUS=a" {
			t.Errorf("the environment is %s, want GPUS=a", got)
		}
	}
	if calls := fmt.Sprint(p.called()); calls != "[allocate [a]]" {
		t.Errorf("calls are %s, want one for the same device", calls)
	}
	if _, err := os.Stat(filepath.Join(r.dir(), checkpoint.File+".corrupt")); err != nil {
		t.Error(err)
	}
}

// TestAKillBeforeALostCheckpointIsRebuiltLosesNoDevice kills a process after it has found the checkpoint damaged or
// missing and a plugin has registered, and before it is known what runs.
func TestAKillBeforeALostCheckpointIsRebuiltLosesNoDevice(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"removed": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			p := r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
			web := pod("web", "1")
			must(t, r.Allocate(t.Context(), web))
			given, err := r.Give(t.Context(), web, &web.Spec.Containers[0])
			must(t, err)
			path := filepath.Join(r.dir(), checkpoint.File)
			for range 2 {
				r.stop()
				p.stop()
				must(t, lose(path))
				r.start()
				p = r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
				if wait, err := r.Check(pod("next", "2")); !wait || err != nil {
					t.Errorf("a new pod waits %v, %v before it is known what runs", wait, err)
				}
				r.stop()
				p.stop()
				if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("a checkpoint was written before it is known what runs: %v", err)
				}
				r.start()
				p = r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
				r.Recover([]*lifecyclev1.PodStatus{{Uid: "web", Containers: []*lifecyclev1.Container{{
					Name: "main", State: lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING, Annotations: given.Annotations,
				}}}}, goesOn)
				eventually.That(t, "the checkpoint is written", func() bool {
					content, err := checkpoint.Read(r.dir())
					return err == nil && len(content.Entries) == 1 && len(content.Registered) == 1
				})
			}
			p.stop()
			r.restart()
			if r.devices("web") != "a" {
				t.Errorf("the pod has %q, want a", r.devices("web"))
			}
		})
	}
}

// TestANodeWithoutDevicesHasNoCheckpoint, which tells it from one whose machine was set up anew.
func TestANodeWithoutDevicesHasNoCheckpoint(t *testing.T) {
	r := newRig(t)
	r.stop()
	if _, err := os.Stat(filepath.Join(r.dir(), checkpoint.File)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a checkpoint: %v", err)
	}
}
