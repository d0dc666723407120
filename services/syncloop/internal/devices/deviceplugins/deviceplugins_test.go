package deviceplugins_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/metrics/metricstest"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/checkpoint"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAPodKeepsItsDevices follows a pod through a restart of syncloop and of the plugin, and its end.
func TestAPodKeepsItsDevices(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{}, gpu, "gpu.sock", "a", "b", "c")
	web := pod("web", "2")
	if wait, err := r.Check(web); wait || err != nil || !r.Needs(web) || !r.Owns(gpu) || r.Owns("example.com/other") {
		t.Fatalf("the pod waits %v, fails with %v", wait, err)
	}
	must(t, r.Allocate(t.Context(), web))
	if got := r.env(web); got != "GPUS=a,b" {
		t.Errorf("the environment is %s, want GPUS=a,b", got)
	}
	metricstest.Want(t, r.registry, 1, "kubelet_device_plugin_registration_total", "resource_name", gpu)
	metricstest.Want(t, r.registry, 1, "kubelet_device_plugin_alloc_duration_seconds", "resource_name", gpu)

	r.stop()
	p.stop()
	r.start()
	r.amounts(gpu, 0, 0) // until the plugin is back, as in the kubelet
	if got := r.env(web); got != "GPUS=a,b" {
		t.Errorf("after a restart the environment is %s, want GPUS=a,b", got)
	}
	if err := r.Ready(web); err == nil {
		t.Error("a sandbox can be created although the plugin is not back")
	}
	other := pod("other", "2")
	if wait, err := r.Check(other); !wait || err != nil {
		t.Errorf("a new pod waits %v, fails with %v, want that it waits for the plugin", wait, err)
	}
	r.clock.Step(31 * time.Second)
	if wait, err := r.Check(other); wait || err == nil {
		t.Errorf("a new pod waits %v, fails with %v, want that it fails", wait, err)
	}
	p = r.plug(&plugin{}, gpu, "gpu.sock", "a", "b", "c")
	must(t, r.Ready(web))
	must(t, r.Allocate(t.Context(), web))
	if calls := p.called(); len(calls) > 0 {
		t.Errorf("the plugin is asked %v for devices that the pod has", calls)
	}
	const want = "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1"
	if _, err := r.Check(other); err == nil || err.Error() != want {
		t.Errorf("another pod fails with %v, want %s", err, want)
	}
	r.Release("web")
	must(t, r.Allocate(t.Context(), other))
	r.restart()
	if web, other := r.devices("web"), r.devices("other"); web != "" || other != "a b" {
		t.Errorf("after the end of the first pod it has %q, and the other one %q", web, other)
	}
	if fmt.Sprint(r.Pods()) != "[other]" {
		t.Errorf("pods with devices are %v", r.Pods())
	}
}

// TestAPluginThatLeaves checks that the capacity stays for five minutes, that nothing is allocatable meanwhile, and
// that running pods lose nothing.
func TestAPluginThatLeaves(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{}, gpu, "gpu.sock", "a", "b", "-c")
	web := pod("web", "1")
	must(t, r.Allocate(t.Context(), web))
	p.set(errors.New("no driver"))
	r.amounts(gpu, 3, 0)
	r.clock.Step(5 * time.Minute)
	r.amounts(gpu, 3, 0)
	eventually.That(t, "the timer of the grace period is set", func() bool { return r.clock.HasWaiters() })
	r.clock.Step(time.Second)
	r.amounts(gpu, 0, 0)
	if got := r.env(web); got != "GPUS=a" || r.devices("web") != "a" {
		t.Errorf("the running pod has %s, want GPUS=a", got)
	}
	r.restart()
	if _, known := r.Amounts()[gpu]; known {
		t.Error("the next process expects the removed resource")
	}
	r.plug(&plugin{}, gpu, "again.sock", "a", "b")
	if err := r.Allocate(t.Context(), pod("next", "2")); err == nil {
		t.Error("the device of a running pod was given to another one")
	}
}

func TestHealth(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
	must(t, r.Allocate(t.Context(), pod("web", "1")))
	p.set(nil, healthy("-a", "b")...)
	r.amounts(gpu, 2, 1)
	if d := r.Held("web", "main")[gpu]; len(d) != 1 || d[0].Healthy {
		t.Errorf("the pod has %v, want an unhealthy device", d)
	}
	eventually.That(t, "the pod's status is computed again", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return fmt.Sprint(r.pods) == "[web]"
	})
	if usable := r.Usable()[gpu]; len(usable) != 1 || usable[0].ID != "b" {
		t.Errorf("usable are %v, want b", usable)
	}
	p.set(nil) // changed to none
	r.amounts(gpu, 0, 0)
}

func TestRefusedRegistrations(t *testing.T) {
	r := newRig(t)
	r.plug(&plugin{}, gpu, "gpu.sock", "a")
	for _, tc := range []struct{ resource, socket, version, want string }{
		{gpu, "gpu.sock", "v1alpha1", `requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]`},
		{"cpu", "gpu.sock", "v1beta1", `the ResourceName "cpu" is invalid`},
		{"kubernetes.io/gpu", "gpu.sock", "v1beta1", `the ResourceName "kubernetes.io/gpu" is invalid`},
		{"example.com/g\x00pu\n", "gpu.sock", "v1beta1", `the ResourceName "example.com/g\x00pu\n" is invalid`},
	} {
		if err := r.register(tc.resource, tc.socket, tc.version); err == nil || !strings.HasSuffix(err.Error(), tc.want) {
			t.Errorf("%q: error = %v, want %s", tc.resource, err, tc.want)
		}
	}
	failed := make(chan error, 1)
	go func() { failed <- r.register(gpu, "gpu.sock", "v1beta1") }()
	eventually.That(t, "the second registration waits for the end of the first", func() bool {
		select {
		case err := <-failed:
			failed <- err
			return true
		default:
			r.clock.Step(time.Second)
			return false
		}
	})
	want := "device plugin already connected: " + filepath.Join(r.dir(), "gpu.sock")
	if err := <-failed; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("a second registration fails with %v, want %s", err, want)
	}
	r.amounts(gpu, 1, 1)
	broken := &plugin{fail: errors.New("broken")}
	r.serve(broken, "broken.sock")
	if err := r.register(gpu, "broken.sock", "v1beta1"); err == nil ||
		!strings.Contains(err.Error(), "failed to get device plugin options") {
		t.Errorf("a plugin without options: %v", err)
	}
	r.amounts(gpu, 1, 1)
	if err := r.Validate(gpu, []string{"v1beta1", "v2"}); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		"manager version, v1beta1, is not among plugin supported versions [v2]":   r.Validate(gpu, []string{"v2"}),
		`invalid name of device plugin socket: the ResourceName "gpu" is invalid`: r.Validate("gpu", []string{"v1beta1"}),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("error = %v, want %s", err, want)
		}
	}
}

// TestTheLastPluginOfAResourceCounts checks that a second plugin of a resource takes over, and that the first one gets
// the calls when the second has gone.
func TestTheLastPluginOfAResourceCounts(t *testing.T) {
	r := newRig(t)
	first := r.plug(&plugin{}, gpu, "first.sock", "a", "b", "c")
	second := r.plug(&plugin{}, gpu, "second.sock", "a", "b", "c", "d")
	must(t, r.Allocate(t.Context(), pod("one", "1")))
	must(t, r.Connect(t.Context(), "example.com/nic", filepath.Join(r.dir(), "first.sock")))
	r.amounts("example.com/nic", 3, 3)
	r.Disconnect(t.Context(), "example.com/nic", filepath.Join(r.dir(), "first.sock"))
	r.amounts("example.com/nic", 3, 0)
	second.stop()
	eventually.That(t, "the end of the second plugin is noticed", func() bool {
		return strings.Contains(r.log.String(), "second.sock")
	})
	eventually.That(t, "the first plugin is asked", func() bool {
		return r.Allocate(t.Context(), pod("two", "1")) == nil && len(first.called()) > 0
	})
	if len(second.called()) != 1 {
		t.Errorf("the second plugin was asked %v, want one allocation", second.called())
	}
}

// TestAHangDelaysItsOwnPodOnly checks that the devices of a hanging call are reserved, that other pods go on, and that
// the end of the pod ends the call.
func TestAHangDelaysItsOwnPodOnly(t *testing.T) {
	r := newRig(t)
	hangs := make(chan struct{}, 1)
	r.plug(&plugin{allocate: func(ctx context.Context, ids []string) (*pluginapi.AllocateResponse, error) {
		if ids[0] == "a" {
			hangs <- struct{}{}
			<-ctx.Done()
		}
		return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
	}}, gpu, "gpu.sock", "a", "b")
	failed := make(chan error, 1)
	go func() { failed <- r.Allocate(t.Context(), pod("slow", "1")) }()
	<-hangs
	must(t, r.Allocate(t.Context(), pod("quick", "1")))
	if r.devices("quick") != "b" || r.devices("slow") != "" {
		t.Errorf("the pods have %q and %q, want b and none yet", r.devices("quick"), r.devices("slow"))
	}
	r.Release("slow")
	if err := <-failed; err == nil {
		t.Error("the allocation of a pod that is gone succeeds")
	}
	if fmt.Sprint(r.Pods()) != "[quick]" {
		t.Errorf("pods with devices are %v", r.Pods())
	}
}

func TestFailedAllocations(t *testing.T) {
	for name, tc := range map[string]struct {
		allocate func(context.Context, []string) (*pluginapi.AllocateResponse, error)
		want     string
	}{
		"an error": {func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
			return nil, errors.New("on fire")
		}, "on fire"},
		"no answer": {func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
			return &pluginapi.AllocateResponse{}, nil
		}, "no containers return in allocation response"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.plug(&plugin{allocate: tc.allocate}, gpu, "gpu.sock", "a")
			if err := r.Allocate(t.Context(), pod("web", "1")); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %s", err, tc.want)
			}
			if _, err := r.Check(pod("next", "1")); err != nil || len(r.Pods()) > 0 {
				t.Errorf("the device is not free again: %v, pods %v", err, r.Pods())
			}
		})
	}
}

func TestThePluginPrefersAndPrepares(t *testing.T) {
	r := newRig(t)
	p := &plugin{prefer: func(*pluginapi.ContainerPreferredAllocationRequest) []string { return []string{"c"} }}
	p.options = pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: true}
	r.plug(p, gpu, "gpu.sock", "a", "b", "c")
	first := podtest.Container(nil, podtest.List(gpu, "1"))
	first.Name = "first"
	web := pod("web", "2", first)
	must(t, r.Allocate(t.Context(), web))
	if got := r.env(web); got != "GPUS=a,c" {
		t.Errorf("the environment is %s, want GPUS=a,c", got)
	}
	want := "[prefer [a b c] [] 1 allocate [c] prefer [a b c] [c] 2 allocate [a c] start [a c]]"
	if got := fmt.Sprint(p.called()); got != want {
		t.Errorf("calls are %s, want %s", got, want)
	}
	p.stop()
	r.amounts(gpu, 3, 0)
	if _, err := r.Give(t.Context(), web, &web.Spec.Containers[0]); err == nil {
		t.Error("a container is created without the plugin that has to prepare its device")
	}
}

// TestWhatAContainerGets joins the answers of two plugins.
func TestWhatAContainerGets(t *testing.T) {
	r := newRig(t)
	answer := func(mark string) func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
		return func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
			return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
				Envs:        map[string]string{"SAME": mark, "OF_" + mark: "1"},
				Mounts:      []*pluginapi.Mount{{ContainerPath: "/lib", HostPath: "/lib/" + mark, ReadOnly: true}},
				Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/" + mark, HostPath: "/dev/null", Permissions: "rw"}},
				Annotations: map[string]string{"by": mark},
				CdiDevices:  []*pluginapi.CDIDevice{{Name: "example.com/cdi=0"}},
			}}}, nil
		}
	}
	r.plug(&plugin{allocate: answer("A")}, gpu, "a.sock", "a")
	r.plug(&plugin{allocate: answer("B")}, "example.com/nic", "b.sock", "a")
	web := pod("web", "1")
	web.Spec.Containers[0].Resources.Limits["example.com/nic"] = web.Spec.Containers[0].Resources.Limits[gpu]
	must(t, r.Allocate(t.Context(), web))
	got, err := r.Give(t.Context(), web, &web.Spec.Containers[0])
	must(t, err)
	want := &containerspec.Given{
		Envs:   []v1.EnvVar{{Name: "OF_A", Value: "1"}, {Name: "SAME", Value: "A"}, {Name: "OF_B", Value: "1"}},
		Mounts: []*runtimeapi.Mount{{ContainerPath: "/lib", HostPath: "/lib/A", Readonly: true}},
		Devices: []*runtimeapi.Device{
			{ContainerPath: "/dev/A", HostPath: "/dev/null", Permissions: "rw"}, {ContainerPath: "/dev/B", HostPath: "/dev/null", Permissions: "rw"},
		},
		CDIDevices: []*runtimeapi.CDIDevice{{Name: "example.com/cdi=0"}},
		Annotations: map[string]string{
			"by": "A", podlabels.Devices: `{"example.com/gpu":["a"],"example.com/nic":["a"]}`,
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if !strings.Contains(r.log.String(), "two device plugins contradict each other") {
		t.Error("the contradiction is not logged")
	}
	none, err := r.Give(t.Context(), web, &v1.Container{Name: "plain"})
	if diff := cmp.Diff(&containerspec.Given{}, none); err != nil || diff != "" {
		t.Errorf("a container without devices gets (-want +got)\n%s", diff)
	}
}

// TestThePluginThatGetsTheCallsSaysWhetherItPreparesDevices while another one of the resource has other options.
func TestThePluginThatGetsTheCallsSaysWhetherItPreparesDevices(t *testing.T) {
	r := newRig(t)
	old := &plugin{}
	old.options.PreStartRequired = true
	r.plug(old, gpu, "old.sock", "a")
	fresh := r.plug(&plugin{}, gpu, "new.sock", "a")
	web := pod("web", "1")
	must(t, r.Allocate(t.Context(), web))
	r.env(web)
	if calls := fmt.Sprint(old.called(), fresh.called()); calls != "[] [allocate [a]]" {
		t.Errorf("calls are %s, want one of the new plugin", calls)
	}
	fresh.stop()
	eventually.That(t, "the old plugin prepares the device", func() bool {
		r.env(web)
		return slices.Equal(old.called(), []string{"start [a]"})
	})
	old.stop()
	eventually.That(t, "a device that its plugin has to prepare waits for a plugin", func() bool {
		_, err := r.Give(t.Context(), web, &web.Spec.Containers[0])
		return err != nil && strings.HasSuffix(err.Error(), "the plugin has gone")
	})
}

// TestAContainerStartsAgainWithoutThePluginThatGaveNothing checks that the empty answer of a plugin is kept.
func TestAContainerStartsAgainWithoutThePluginThatGaveNothing(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{allocate: func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
		return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
	}}, gpu, "gpu.sock", "a")
	web := pod("web", "1")
	must(t, r.Allocate(t.Context(), web))
	p.stop()
	r.restart()
	if got := r.env(web); got != "" {
		t.Errorf("the environment is %s, want none", got)
	}
}

// TestACrashedContainerKeepsItsDevices that its newest instance was created with, unless another pod has them.
func TestACrashedContainerKeepsItsDevices(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.start()
	crashed := func(second int64, device string) *lifecyclev1.Container {
		return &lifecyclev1.Container{
			Name: "main", State: lifecyclev1.ContainerState_CONTAINER_STATE_EXITED, ExitCode: 1,
			CreatedAt:   timestamppb.New(time.Unix(second, 0)),
			Annotations: map[string]string{podlabels.Devices: `{"example.com/gpu":["` + device + `"]}`},
		}
	}
	r.Recover([]*lifecyclev1.PodStatus{
		{Uid: "older", Containers: []*lifecyclev1.Container{crashed(1, "a")}},
		{Uid: "web", Containers: []*lifecyclev1.Container{crashed(3, "a"), crashed(2, "b")}},
	}, goesOn)
	r.plug(&plugin{}, gpu, "gpu.sock", "a", "b")
	if !strings.Contains(r.log.String(), `level=ERROR msg="a container loses its devices, because another pod has them" pod.uid=older`) {
		t.Errorf("the log does not say which container loses its device: %s", r.log.String())
	}
	must(t, r.Allocate(t.Context(), pod("next", "1")))
	if r.devices("web") != "a" || r.devices("older") != "" || r.devices("next") != "b" {
		t.Errorf("web has %q, older %q and next %q, want a, none and b", r.devices("web"), r.devices("older"), r.devices("next"))
	}
	if got := r.env(pod("web", "1")); got != "GPUS=a" {
		t.Errorf("the environment is %s, want GPUS=a", got)
	}
}

func TestAHundredThousandDevices(t *testing.T) {
	r := newRig(t)
	ids := make([]string, 100_000)
	for i := range ids {
		ids[i] = fmt.Sprintf("device-%06d", i)
	}
	p := r.plug(&plugin{}, gpu, "gpu.sock", ids...)
	for i := range 20 {
		must(t, r.Allocate(t.Context(), pod(fmt.Sprint("pod", i), "50")))
	}
	for i := range ids { // all IDs change at once
		ids[i] = fmt.Sprintf("other-%06d", i)
	}
	p.set(nil, healthy(ids[:99_000]...)...)
	r.amounts(gpu, 99_000, 99_000)
	must(t, r.Allocate(t.Context(), pod("next", "5000")))
	info, err := os.Stat(filepath.Join(r.dir(), checkpoint.File))
	must(t, err)
	if info.Size() > 8<<20 {
		t.Errorf("the checkpoint has %d bytes", info.Size())
	}
}

// TestSocketsOfAnEarlierProcessAreRemoved checks what plugins wait for: their sockets go, and other files stay.
func TestSocketsOfAnEarlierProcessAreRemoved(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{}, gpu, "gpu.sock", "a")
	file := filepath.Join(r.dir(), "note")
	must(t, os.WriteFile(file, nil, 0o600))
	r.restart()
	if _, err := os.Stat(filepath.Join(r.dir(), "gpu.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of the plugin: %v, want that it is gone", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	path := filepath.Join(r.dir(), "kubelet.sock")
	eventually.That(t, "the socket is served with the kubelet's mode", func() bool {
		info, err := os.Stat(path)
		return err == nil && info.Mode() == os.ModeSocket|0o755
	})
	p.stop()
	var none types.UID
	r.Release(none) // of a pod without devices
}

// TestASocketThatCannotBeRemovedKeepsNoNodeFromItsStart has a mount in the place of the socket of a plugin, because
// root may remove anything else.
func TestASocketThatCannotBeRemovedKeepsNoNodeFromItsStart(t *testing.T) {
	r := newRig(t)
	p := r.plug(&plugin{}, gpu, "gpu.sock", "a")
	path := filepath.Join(r.dir(), "gpu.sock")
	must(t, unix.Mount(path, path, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(path, unix.MNT_DETACH)) })
	r.restart()
	if !strings.Contains(r.log.String(), path) {
		t.Errorf("the log does not name the socket: %s", r.log.String())
	}
	p.stop()
}
