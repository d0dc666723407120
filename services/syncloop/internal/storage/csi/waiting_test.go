package csi_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAPodThatWaitsForAnotherCallOfItsVolumeSaysSo has a pod whose volume is staged for another pod, or unstaged, while
// the driver hangs.
func TestAPodThatWaitsForAnotherCallOfItsVolumeSaysSo(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodeUnstageVolume"} {
		t.Run(method, func(t *testing.T) {
			r := newRig(t, canStage)
			r.stop()
			now := clocktesting.NewFakeClock(time.Now())
			r.clock = now
			r.start()
			manager, err := volumes.New(volumes.Config{
				PodsDir: filepath.Join(r.root, "pods"), Clock: now, Logger: slog.New(slog.DiscardHandler),
				Plugins: persistentvolumes.Plugins(persistentvolumes.Config{
					Claims: claims{"pv-1": newPV("pv-1", "vol-1")}, Kinds: []persistentvolumes.Kind{r.plugin},
				}),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer run(t, manager.Run)()
			want := func(uid types.UID) {
				manager.Want(t.Context(), podWith(uid, v1.VolumeSource{
					PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "pv-1"},
				}))
			}
			ready := func(uid types.UID) {
				t.Helper()
				eventually.That(t, string(uid)+" is ready", func() bool {
					now.Step(time.Second)
					return manager.Ready(uid)
				})
			}
			staged := method == "NodeUnstageVolume"
			if staged {
				want("u1")
				ready("u1")
			}
			r.driver.Set(method, csidriver.Hangs)
			if staged {
				if err := manager.Release(t.Context(), "u1"); err != nil {
					t.Fatal(err)
				}
			} else {
				want("u1")
			}
			eventually.That(t, "the driver hangs", func() bool { return len(r.driver.Calls(method)) == 1 })
			want("u2")
			eventually.That(t, "the other pod says what it waits for", func() bool {
				now.Step(volumes.SlowAfter)
				return manager.Describe("u2")[0].GetWaitsFor() == "CSI driver "+driverName+" to end another call for the volume"
			})
			r.heal(method) // it ends the call
			ready("u2")
			for _, uid := range []types.UID{"u1", "u2"} {
				if err := manager.Release(t.Context(), uid); err != nil {
					t.Error(err)
				}
			}
			eventually.That(t, "it is unstaged", func() bool {
				now.Step(time.Minute)
				return len(r.left()) == 0
			})
			r.ends()
		})
	}
}

// TestAPodThatWaitsForTheClusterSaysSo has a volume with a secret, and a driver that wants a token of the pod.
func TestAPodThatWaitsForTheClusterSaysSo(t *testing.T) {
	for want, needs := range map[string]func(*v1.PersistentVolume, *storagev1.CSIDriver){
		"secret ns/publish": func(pv *v1.PersistentVolume, _ *storagev1.CSIDriver) {
			pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "publish"}
		},
		volumes.IssuedToken: func(_ *v1.PersistentVolume, driver *storagev1.CSIDriver) {
			driver.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "disks"}}
		},
	} {
		t.Run(want, func(t *testing.T) {
			r := newRig(t, canStage)
			pv := newPV("pv-1", "vol-1")
			needs(pv, r.cluster.drivers[driverName])
			r.cluster.secrets["ns/publish"] = &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "publish"}}
			r.cluster.slow = make(chan struct{})
			answer := sync.OnceFunc(func() { close(r.cluster.slow) })
			now := clocktesting.NewFakeClock(time.Now())
			manager, err := volumes.New(volumes.Config{
				PodsDir: filepath.Join(r.root, "pods"), Clock: now, Logger: slog.New(slog.DiscardHandler),
				Plugins: persistentvolumes.Plugins(persistentvolumes.Config{
					Claims: claims{"pv-1": pv}, Kinds: []persistentvolumes.Kind{r.plugin},
				}),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer run(t, manager.Run)()
			defer answer()
			manager.Want(t.Context(), podWith("u1", v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "pv-1"},
			}))
			eventually.That(t, "the pod waits for the "+want, func() bool {
				now.Step(volumes.SlowAfter)
				return manager.Describe("u1")[0].GetWaitsFor() == want
			})
			answer()
			eventually.That(t, "it is ready", func() bool {
				now.Step(time.Second)
				return manager.Ready("u1")
			})
			if err := manager.Release(t.Context(), "u1"); err != nil {
				t.Error(err)
			}
			r.ends()
		})
	}
}

// TestADriverThatCannotUnpublishForAnHourDelaysItsOwnPodsOnly has pods that come and go meanwhile, one operation at a
// time. The driver is asked again and again, but not without pauses.
func TestADriverThatCannotUnpublishForAnHourDelaysItsOwnPodsOnly(t *testing.T) {
	r := newRig(t, canStage)
	now := clocktesting.NewFakeClock(time.Now())
	manager, err := volumes.New(volumes.Config{
		PodsDir: filepath.Join(r.root, "pods"), Clock: now, Logger: slog.New(slog.DiscardHandler), Places: 1,
		Plugins: append(persistentvolumes.Plugins(persistentvolumes.Config{
			Claims: claims{"pv-1": newPV("pv-1", "vol-1")}, Kinds: []persistentvolumes.Kind{r.plugin},
		}), &volumes.EmptyDir{Mounter: volumes.Machine{}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer run(t, manager.Run)()
	manager.Want(t.Context(), podWith("u1", v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "pv-1"},
	}))
	eventually.That(t, "it is ready", func() bool { return manager.Ready("u1") })
	r.driver.Set("NodeUnpublishVolume", csidriver.Fails)
	if err := manager.Release(t.Context(), "u1"); err == nil {
		t.Fatal("it is released")
	}
	const minutes = 60
	for i := range minutes {
		now.Step(time.Minute)
		uid := types.UID(fmt.Sprint("z", i))
		manager.Want(t.Context(), podWith(uid, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
		eventually.That(t, "another pod is ready", func() bool { return manager.Ready(uid) })
		if err := manager.Release(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
	if calls := len(r.driver.Calls("NodeUnpublishVolume")); calls < minutes/4 || calls > minutes+10 {
		t.Errorf("the driver was asked %d times in an hour", calls)
	}
	if at := mountsBelow(t, r.dir("u1", "pv-1")); len(at) != 1 {
		t.Errorf("mounted: %v, want the volume", at)
	}
	r.driver.Set("NodeUnpublishVolume", csidriver.None)
	released := make(chan struct{})
	go func() { // the clock runs faster than the driver answers, so that it may fail at first
		defer close(released)
		for t.Context().Err() == nil && manager.Release(t.Context(), "u1") != nil {
		}
	}()
	eventually.That(t, "it is released", func() bool {
		now.Step(time.Minute)
		select {
		case <-released:
			return true
		default:
			return false
		}
	})
	r.ends()
}
