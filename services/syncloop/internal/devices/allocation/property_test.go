package allocation_test

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
)

// world is a book with the pods that it has given devices to.
type world struct {
	book *allocation.Book
	pods map[string]*v1.Pod
	next int
}

func drawDevices(t *rapid.T) []allocation.Device {
	var all []allocation.Device
	for i := range rapid.IntRange(0, 8).Draw(t, "devices") {
		all = append(all, allocation.Device{ID: fmt.Sprint("d", i), Healthy: rapid.IntRange(0, 4).Draw(t, "health") > 0})
	}
	return all
}

func drawPod(t *rapid.T, uid string) *v1.Pod {
	var inits, containers []v1.Container
	for i := range rapid.IntRange(0, 3).Draw(t, "inits") {
		c := container(fmt.Sprint("init", i), fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "count")))
		if rapid.Bool().Draw(t, "sidecar") {
			c.RestartPolicy = ptr.To(v1.ContainerRestartPolicyAlways)
		}
		inits = append(inits, c)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "containers") {
		containers = append(containers, container(fmt.Sprint("c", i), fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "count"))))
	}
	return pod(uid, inits, containers...)
}

// add allocates the devices of a new pod, with random preferences. Check must have said what happens.
func (w *world) add(t *rapid.T) {
	w.next++
	p := drawPod(t, fmt.Sprint("pod", w.next))
	expected := w.book.Check(p)
	for _, need := range w.book.Needs(p) {
		_, _, asked := w.book.Ask(p, need)
		preferred := rapid.SliceOfN(rapid.SampledFrom([]string{"d0", "d3", "d6", "d7", "none"}), 0, 4).Draw(t, "preferred")
		_, err := w.book.Reserve(p, need, preferred)
		if (err == nil) != (asked == nil) || err != nil && err.Error() != asked.Error() {
			t.Fatalf("Ask fails with %v, Reserve with %v", asked, err)
		}
		if err != nil {
			if expected == nil || expected.Error() != err.Error() {
				t.Fatalf("Check returned %v, Reserve fails with %v", expected, err)
			}
			w.book.Release(p.UID)
			return
		}
		grant := w.book.Held(need.Container)[need.Resource]
		grant.Response = &pluginapi.ContainerAllocateResponse{}
		w.book.Put(need.Container, need.Resource, grant)
		if len(grant.Devices) != need.Count {
			t.Fatalf("%v has %d devices, needs %d", need.Container, len(grant.Devices), need.Count)
		}
	}
	if expected != nil {
		t.Fatalf("Check returned %v, and all is allocated", expected)
	}
	if len(w.book.Needs(p)) > 0 { // without a plugin a pod needs nothing
		w.pods[string(p.UID)] = p
	}
}

// TestAllocation checks that no device is in two pods, nor in two containers of one that run at the same time, that a
// pod keeps what it has, and that what Check says is what happens.
func TestAllocation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{book: allocation.New(), pods: map[string]*v1.Pod{}}
		before := map[allocation.Container][]string{}
		t.Repeat(map[string]func(*rapid.T){
			"report": func(t *rapid.T) { w.book.Update(gpu, drawDevices(t)) },
			"lose":   func(*rapid.T) { w.book.Lose(gpu) },
			"remove": func(*rapid.T) { w.book.Remove(gpu) },
			"expect": func(*rapid.T) { w.book.Expect(gpu) },
			"add":    w.add,
			"release": func(t *rapid.T) {
				if len(w.pods) == 0 {
					t.Skip("no pod")
				}
				p := w.pods[rapid.SampledFrom(keys(w.pods)).Draw(t, "pod")]
				w.book.Release(p.UID)
				delete(w.pods, string(p.UID))
				for c := range before {
					if c.Pod == p.UID {
						delete(before, c)
					}
				}
			},
			"": func(t *rapid.T) {
				w.check(t)
				w.book.Each(func(c allocation.Container, _ string, g allocation.Grant) {
					if had, ok := before[c]; ok && !slices.Equal(had, g.IDs()) {
						t.Fatalf("%v had %v, has %v", c, had, g.IDs())
					}
					before[c] = g.IDs()
				})
			},
		})
	})
}

func keys(pods map[string]*v1.Pod) []string {
	var all []string
	for uid := range pods {
		all = append(all, uid)
	}
	slices.Sort(all)
	return all
}

func (w *world) check(t *rapid.T) {
	owners := map[string]string{}
	for _, uid := range w.book.Pods() {
		p := w.pods[string(uid)]
		if p == nil {
			t.Fatalf("%s has devices", uid)
		}
		running := map[string]string{}
		for i, c := range append(slices.Clone(p.Spec.InitContainers), p.Spec.Containers...) {
			ends := i < len(p.Spec.InitContainers) && c.RestartPolicy == nil
			for _, d := range w.book.Held(allocation.Container{Pod: uid, Name: c.Name})[gpu].Devices {
				if other, ok := owners[d.ID]; ok && other != string(uid) {
					t.Fatalf("%s is in %s and %s", d.ID, other, uid)
				}
				owners[d.ID] = string(uid)
				if other, ok := running[d.ID]; ok {
					t.Fatalf("%s of pod %s is in the containers %s and %s", d.ID, uid, other, c.Name)
				}
				if !ends {
					running[d.ID] = c.Name
				}
			}
		}
	}
	amounts := w.book.Amounts()[gpu]
	if amounts.Allocatable > amounts.Capacity {
		t.Fatalf("amounts are %v", amounts)
	}
}
