package allocation_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podtest"
)

const gpu = "example.com/gpu"

func devices(ids ...string) []allocation.Device {
	var all []allocation.Device
	for _, id := range ids {
		name, sick := strings.CutPrefix(id, "-")
		all = append(all, allocation.Device{ID: name, Healthy: !sick})
	}
	return all
}

func container(name, count string) v1.Container {
	c := podtest.Container(nil, podtest.List(gpu, count))
	c.Name = name
	return c
}

func pod(uid string, inits []v1.Container, containers ...v1.Container) *v1.Pod {
	p := podtest.Pod(uid, containers...)
	p.UID = types.UID(uid)
	p.Spec.InitContainers = inits
	return p
}

// give allocates all that a pod needs, as a plugin without preferences does, and returns the devices by container.
func give(t *testing.T, b *allocation.Book, p *v1.Pod) (map[string]string, error) {
	t.Helper()
	for _, need := range b.Needs(p) {
		if _, err := b.Reserve(p, need, nil); err != nil {
			return nil, err
		}
		grant := b.Held(need.Container)[need.Resource]
		grant.Response = &pluginapi.ContainerAllocateResponse{}
		b.Put(need.Container, need.Resource, grant)
	}
	got := map[string]string{}
	b.Each(func(c allocation.Container, _ string, g allocation.Grant) {
		if c.Pod == p.UID {
			got[c.Name] = strings.Join(g.IDs(), " ")
		}
	})
	return got, nil
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}

// TestInitContainersAndSidecarsReuseDevices checks that containers take over the devices of init containers that have
// ended, and that a sidecar keeps its own.
func TestInitContainersAndSidecarsReuseDevices(t *testing.T) {
	sidecar := container("sidecar", "1")
	sidecar.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
	b := allocation.New()
	b.Update(gpu, devices("a", "b", "c", "d", "e"))
	got, err := give(t, b, pod("u", []v1.Container{container("first", "2"), sidecar, container("second", "3")},
		container("main", "1"), container("other", "2")))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"first": "a b", "sidecar": "a", "second": "b c d", "main": "b", "other": "c d"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWhyDevicesAreNotAllocated(t *testing.T) {
	for name, tc := range map[string]struct {
		devices []allocation.Device
		prepare func(t *testing.T, b *allocation.Book)
		want    string
	}{
		"too few": {
			devices: devices("a", "-b"),
			want:    "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1",
		},
		"all in use": {
			devices: devices("a", "b"),
			prepare: func(t *testing.T, b *allocation.Book) {
				if _, err := give(t, b, pod("other", nil, container("main", "2"))); err != nil {
					t.Fatal(err)
				}
			},
			want: "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 0",
		},
		"none is healthy": {
			devices: devices("-a", "-b"),
			want:    "no healthy devices present; cannot allocate unhealthy devices example.com/gpu",
		},
		"the plugin has gone": {
			devices: devices("a", "b"), prepare: func(_ *testing.T, b *allocation.Book) { b.Lose(gpu) },
			want: "no healthy devices present; cannot allocate unhealthy devices example.com/gpu",
		},
		"the resource was removed while a pod has it": {
			devices: devices("a", "b"),
			prepare: func(t *testing.T, b *allocation.Book) {
				if _, err := give(t, b, pod("other", nil, container("main", "2"))); err != nil {
					t.Fatal(err)
				}
				b.Remove(gpu)
			},
			want: "cannot allocate unregistered device example.com/gpu",
		},
		"its own are not healthy any more": {
			devices: devices("a", "b", "c"),
			prepare: func(t *testing.T, b *allocation.Book) {
				if _, err := give(t, b, pod("u", nil, container("main", "2"))); err != nil {
					t.Fatal(err)
				}
				b.Update(gpu, devices("-a", "b", "c"))
			},
			want: "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu",
		},
		"the request has changed": {
			devices: devices("a", "b", "c"),
			prepare: func(t *testing.T, b *allocation.Book) {
				if _, err := give(t, b, pod("u", nil, container("main", "1"))); err != nil {
					t.Fatal(err)
				}
			},
			want: `pod "u" container "main" changed request for resource "example.com/gpu" from 1 to 2`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := allocation.New()
			b.Update(gpu, tc.devices)
			if tc.prepare != nil {
				tc.prepare(t, b)
			}
			p := pod("u", nil, container("main", "2"))
			wantError(t, b.Check(p), tc.want)
			_, err := give(t, b, p)
			wantError(t, err, tc.want)
		})
	}
}

// TestOtherResourcesAreNotAllocated checks that native resources, and those that no plugin has, are none of this
// package's.
func TestOtherResourcesAreNotAllocated(t *testing.T) {
	b := allocation.New()
	p := pod("u", nil, container("main", "7"))
	p.Spec.Containers[0].Resources.Limits["cpu"] = p.Spec.Containers[0].Resources.Limits[gpu]
	if needs := b.Needs(p); len(needs) != 0 || b.Check(p) != nil {
		t.Errorf("without a plugin a pod needs %v", needs)
	}
}

func TestThePluginIsAskedForItsPreference(t *testing.T) {
	b := allocation.New()
	b.Update(gpu, devices("a", "b", "c", "d", "-e"))
	if _, err := give(t, b, pod("other", nil, container("main", "1"))); err != nil {
		t.Fatal(err)
	}
	p := pod("u", []v1.Container{container("init", "1")}, container("main", "2"))
	needs := b.Needs(p)
	if _, err := b.Reserve(p, needs[0], []string{"d"}); err != nil {
		t.Fatal(err)
	}
	question, ask, err := b.Ask(p, needs[1])
	if err != nil || !ask || fmt.Sprint(question) != "{[b c d] [d] 2}" {
		t.Errorf("the plugin is asked %v %v %v, want {[b c d] [d] 2}", question, ask, err)
	}
	// What is in use, unhealthy, unknown or required already is not taken because the plugin names it.
	ids, err := b.Reserve(p, needs[1], []string{"a", "e", "x", "d", "c"})
	if err != nil || !slices.Equal(ids, []string{"c", "d"}) {
		t.Errorf("chosen are %v, %v, want c and d", ids, err)
	}
}

// TestAmountsAndHealth checks that unhealthy devices count as capacity only, and so does each device of a plugin that
// has gone.
func TestAmountsAndHealth(t *testing.T) {
	b := allocation.New()
	b.Expect(gpu)
	want := func(what string, amounts allocation.Amounts) {
		t.Helper()
		if got := b.Amounts()[gpu]; got != amounts {
			t.Errorf("%s: %v, want %v", what, got, amounts)
		}
	}
	want("before the plugin is back", allocation.Amounts{})
	if !b.Awaits(gpu) {
		t.Error("the plugin is not awaited")
	}
	b.Update(gpu, devices("a", "b", "-c", "a"))
	want("reported", allocation.Amounts{Capacity: 3, Allocatable: 2})
	if _, err := give(t, b, pod("u", nil, container("main", "1"))); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		devices []allocation.Device
		changed int
		healthy bool
	}{
		{devices("-a", "b"), 1, false}, {devices("-a", "-b"), 0, false}, {devices("b"), 0, true}, {devices("a"), 1, true},
	} {
		changed := b.Update(gpu, step.devices)
		health := b.Health(allocation.Container{Pod: "u", Name: podtest.Pod("u", container("main", "1")).Spec.Containers[0].Name})
		if len(changed) != step.changed || len(health[gpu]) != 1 || health[gpu][0].Healthy != step.healthy {
			t.Errorf("after %v: changed %v, health %v, want %d and %v", step.devices, changed, health, step.changed, step.healthy)
		}
	}
	b.Lose(gpu)
	want("gone", allocation.Amounts{Capacity: 1})
	if err := b.Present("u"); err == nil {
		t.Error("a device without a plugin is present")
	}
	b.Remove(gpu)
	if _, ok := b.Amounts()[gpu]; ok || !b.Manages(gpu) || !b.Has("u") {
		t.Error("a removed resource stays, or its pod has lost its device")
	}
}
