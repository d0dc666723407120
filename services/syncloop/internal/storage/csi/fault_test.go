package csi_test

import (
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// soon is the deadline of calls that hang. It is long enough for all others, also on a machine with much to do.
const soon = 2 * time.Second

// faults are the faults of calls by their names.
func faults() map[string]csidriver.Fault {
	return map[string]csidriver.Fault{
		"error": csidriver.Fails, "hang": csidriver.Hangs, "lost answer": csidriver.Loses, "killed": csidriver.Dies,
	}
}

// heal ends the fault of a method; a driver that has died is started again.
func (r *rig) heal(method string) {
	r.t.Helper()
	r.driver.Set(method, csidriver.None)
	r.driver.Stop()
	r.serve()
}

// TestFaultsOfCallsThatMount lets each call that mounts go wrong. The pod then gets its volume after all, or goes, also
// in the next process.
func TestFaultsOfCallsThatMount(t *testing.T) {
	for _, method := range []string{"NodeGetCapabilities", "NodeStageVolume", "NodePublishVolume"} {
		for name, fault := range faults() {
			for _, comesBack := range []bool{true, false} {
				for _, restarts := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s/%s/comes back %t/restarts %t", method, name, comesBack, restarts), func(t *testing.T) {
						t.Parallel()
						r := newRig(t, canStage)
						r.restart(soon)
						one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
						r.driver.Set(method, fault)
						if _, err := r.plugin.Mount(t.Context(), one); err == nil {
							t.Fatal("the call does not fail")
						}
						r.heal(method)
						r.timeout = 30 * time.Second
						if restarts {
							r.restart(r.timeout)
						}
						if comesBack {
							eventually.That(t, "it is mounted", func() bool {
								_, err := r.plugin.Mount(t.Context(), one)
								return err == nil
							})
							r.mount(one)
						}
						eventually.That(t, "it is unmounted", func() bool { return r.plugin.Unmount(t.Context(), one.Dir) == nil })
						r.ends()
					})
				}
			}
		}
	}
}

// restart starts another process, in which calls have a deadline.
func (r *rig) restart(timeout time.Duration) {
	r.t.Helper()
	r.stop()
	r.timeout = timeout
	r.start()
}

// TestFaultsOfCallsThatUnmount lets each call that unmounts go wrong, while another pod uses the volume.
func TestFaultsOfCallsThatUnmount(t *testing.T) {
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
		for name, fault := range faults() {
			for _, comesBack := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/comes back %t", method, name, comesBack), func(t *testing.T) {
					t.Parallel()
					r := newRig(t, canStage)
					one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
					r.mount(one)
					r.restart(soon)
					r.driver.Set(method, fault)
					before := len(r.driver.Calls(method))
					err := r.plugin.Unmount(t.Context(), one.Dir)
					if (err == nil) != (method == "NodeUnstageVolume") {
						t.Errorf("%v", err)
					}
					eventually.That(t, "it is called", func() bool { return len(r.driver.Calls(method)) > before })
					r.heal(method)
					if comesBack {
						eventually.That(t, "it is mounted again", func() bool {
							_, err := r.plugin.Mount(t.Context(), one)
							return err == nil
						})
						if at := mountsBelow(t, one.Dir); len(at) != 1 {
							t.Errorf("mounted: %v, want exactly one", at)
						}
					}
					eventually.That(t, "it is unmounted", func() bool { return r.plugin.Unmount(t.Context(), one.Dir) == nil })
					r.ends()
				})
			}
		}
	}
}

// TestAFaultOfOnePodSparesTheOther lets the publication for a second pod fail; the first one keeps the volume.
func TestAFaultOfOnePodSparesTheOther(t *testing.T) {
	r := newRig(t, canStage)
	pv := newPV("pv-1", "vol-1")
	one, two := r.request(newPod("u1"), pv), r.request(newPod("u2"), pv)
	r.mount(one)
	r.driver.Set("NodePublishVolume", csidriver.Fails)
	fails(t, r, two, "NodePublishVolume fails as asked")
	calls := len(r.driver.Calls("NodeUnpublishVolume"))
	r.unmount(two.Dir)
	if len(r.driver.Calls("NodeUnpublishVolume")) != calls {
		t.Error("what was never published is unpublished")
	}
	if at := mountsBelow(t, one.Dir); len(at) != 1 {
		t.Errorf("mounted: %v, want exactly one", at)
	}
	r.unmount(one.Dir)
	r.ends()
}

// TestADeadDriverDelaysItsOwnPodsOnly has more pods of a driver that hangs than operations run at once.
func TestADeadDriverDelaysItsOwnPodsOnly(t *testing.T) {
	r := newRig(t, canStage)
	r.driver.Set("NodeStageVolume", csidriver.Hangs)
	source, now := claims{}, clocktesting.NewFakeClock(time.Now())
	manager, err := volumes.New(volumes.Config{
		PodsDir: filepath.Join(r.root, "pods"), Clock: now, Logger: slog.New(slog.DiscardHandler), Places: 2,
		Plugins: append(persistentvolumes.Plugins(persistentvolumes.Config{
			Claims: source, Kinds: []persistentvolumes.Kind{r.plugin},
		}), &volumes.EmptyDir{Mounter: volumes.Machine{}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, manager.Run)()
	const many = 8
	for i := range many {
		name := fmt.Sprintf("pv-%d", i)
		source[name] = newPV(name, name)
	}
	for name := range source {
		manager.Want(t.Context(), podWith(types.UID(name), v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}))
	}
	eventually.That(t, "all places are taken", func() bool { return len(r.driver.Calls("NodeStageVolume")) == 2 })
	manager.Want(t.Context(), podWith("z", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})) // it is the last one
	eventually.That(t, "the pod beside them is ready", func() bool {
		now.Step(time.Second)
		return manager.Ready("z")
	})
	eventually.That(t, "each pod of the driver has a call that hangs", func() bool {
		now.Step(time.Second)
		return len(r.driver.Calls("NodeStageVolume")) == many
	})
	for name := range source {
		want := "CSI driver " + driverName + " to answer NodeStageVolume"
		eventually.That(t, name+" waits for "+want, func() bool {
			now.Step(volumes.SlowAfter)
			return manager.Describe(types.UID(name))[0].GetWaitsFor() == want
		})
	}
	r.heal("NodeStageVolume") // it ends the calls that hang
	released := make(chan error)
	for _, uid := range append(slices.Collect(maps.Keys(source)), "z") {
		go func() { released <- manager.Release(t.Context(), types.UID(uid)) }()
	}
	for range many + 1 {
		if err := <-released; err != nil {
			t.Error(err)
		}
	}
	r.ends()
}

// TestOrphansOfAnEarlierProcess removes volumes of pods that nobody knows any more.
func TestOrphansOfAnEarlierProcess(t *testing.T) {
	r := newRig(t, canStage, csispec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	one, two := r.request(newPod("u1"), newPV("pv-1", "vol-1")), r.request(newPod("u2"), newPV("pv-2", "vol-2"))
	r.mount(one)
	r.mount(two)
	r.driver.Set("NodeUnstageVolume", csidriver.Fails)
	r.unmount(two.Dir)
	r.stop()
	r.driver.Set("NodeUnstageVolume", csidriver.None)
	r.start() // unstages the second one by itself
	eventually.That(t, "a volume without pods is unstaged", func() bool { return len(mountsBelow(t, r.root)) == 2 })
	manager, err := volumes.New(volumes.Config{
		PodsDir: filepath.Join(r.root, "pods"), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		Plugins: persistentvolumes.Plugins(persistentvolumes.Config{Kinds: []persistentvolumes.Kind{r.plugin}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, manager.Run)()
	if err := manager.Release(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	r.ends()
}

// claims has persistent volumes by the names of their claims.
type claims map[string]*v1.PersistentVolume

func podWith(uid types.UID, source v1.VolumeSource) *v1.Pod {
	pod := newPod(uid)
	pod.Spec.Volumes = []v1.Volume{{Name: "files", VolumeSource: source}}
	pod.Spec.Containers = []v1.Container{{Name: "app", VolumeMounts: []v1.VolumeMount{{Name: "files", MountPath: "/files"}}}}
	return pod
}

func TestMessagesNameWhatToDo(t *testing.T) {
	r := newRig(t)
	pv := newPV("pv-1", "")
	fails(t, r, r.request(newPod("u1"), pv), "names no CSI driver with a volume handle")
	pv = newPV("pv-1", "vol-1")
	pv.Spec.CSI.Driver = "../up"
	fails(t, r, r.request(newPod("u1"), pv), "names no CSI driver")
	pv = newPV("pv-1", "vol-1")
	pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "none"}
	fails(t, r, r.request(newPod("u1"), pv), `fetching NodePublishSecretRef ns/none failed: secrets "none" not found`)
	if left := r.left(); strings.Contains(strings.Join(left, " "), "..") {
		t.Error(left)
	}
}
