package volumes_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestVolumesAreInPlaceBeforeAndGoneAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		pod := newPod("u1", "config", "more")
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "unused", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}})
		if err := r.want(pod); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"config", "more"} {
			if path := r.path("u1", "kubernetes.io~configmap", name); !r.plugin.isMounted(path) || r.manager.Path(pod, volumeNamed(pod, name)) != path {
				t.Errorf("%s is not mounted, or the container is told another path", path)
			}
		}
		if r.plugin.count("setup unused") != 0 {
			t.Error("a volume was made that no container mounts")
		}
		if err := r.release("u1"); err != nil {
			t.Fatal(err)
		}
		if points, _ := r.mounter.List(); len(points) > 0 {
			t.Errorf("mounted after the pod: %v", points)
		}
		if _, err := os.Stat(r.path("u1", "kubernetes.io~configmap", "config")); !os.IsNotExist(err) {
			t.Errorf("after the pod: %v", err)
		}
		if err := r.release("u1"); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

func volumeNamed(pod *v1.Pod, name string) *v1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// TestAPluginGetsTheGroupOfThePodAndTheChangePolicy uses a kind of volume that has content from the start.
func TestAPluginGetsTheGroupOfThePodAndTheChangePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		pod := newPod("u1", "config")
		pod.Spec.SecurityContext = &v1.PodSecurityContext{
			FSGroup: ptr.To[int64](4711), FSGroupChangePolicy: ptr.To(v1.FSGroupChangeOnRootMismatch),
		}
		if err := r.want(pod); err != nil {
			t.Fatal(err)
		}
		got := r.plugin.lastRequest()
		if ptr.Deref(got.FSGroup, 0) != 4711 || ptr.Deref(got.FSGroupChangePolicy, "") != v1.FSGroupChangeOnRootMismatch {
			t.Errorf("told is %+v, want Deref 4711 and Deref %v", got, v1.FSGroupChangeOnRootMismatch)
		}
	})
}

func TestVolumesSurviveARestartOfTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		pod := newPod("u1", "config")
		if err := r.want(pod); err != nil {
			t.Fatal(err)
		}
		r.stop()
		r.start()
		path := r.path("u1", "kubernetes.io~configmap", "config")
		if !r.plugin.isMounted(path) {
			t.Error("it is not mounted any more")
		}
		if got := r.manager.Describe("u1"); len(got) != 1 || got[0].GetState() != enginev1.VolumeState_VOLUME_STATE_FOUND {
			t.Errorf("found as %v, want exactly one and got[0].State %v", got, enginev1.VolumeState_VOLUME_STATE_FOUND)
		}
		if err := r.want(pod); err != nil {
			t.Fatal(err)
		}
		mounts := 0
		for _, action := range r.mounter.GetLog() {
			if action.Action == "mount" {
				mounts++
			}
		}
		if mounts != 1 {
			t.Errorf("mounted %d times, want 1", mounts)
		}
		if got := r.manager.Describe("u1"); len(got) != 1 || got[0].GetState() != enginev1.VolumeState_VOLUME_STATE_READY || got[0].GetPath() != path {
			t.Errorf("then as %v, want exactly one, got[0].State %v and got[0].Path %v",
				got, enginev1.VolumeState_VOLUME_STATE_READY, path)
		}
	})
}

func TestVolumesOfAPodThatIsGoneAreFoundAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for _, uid := range []types.UID{"u1", "u2"} {
			if err := r.want(newPod(uid, "config")); err != nil {
				t.Fatal(err)
			}
		}
		r.stop()
		r.start()
		if got := r.count("kubernetes.io/configmap:disks.example.com", volumes.StateActual); got != 2 {
			t.Errorf("%d are found, want 2", got)
		}
		if err := r.release("u1"); err != nil { // the manager does not know the pod
			t.Fatal(err)
		}
		if r.plugin.isMounted(r.path("u1", "kubernetes.io~configmap", "config")) || !r.plugin.isMounted(r.path("u2", "kubernetes.io~configmap", "config")) {
			points, _ := r.mounter.List()
			t.Errorf("mounted: %v, want the volume config of u2 and not of u1", points)
		}
		if got := r.count("kubernetes.io/configmap:disks.example.com", volumes.StateActual); got != 1 {
			t.Errorf("%d are there, want 1", got)
		}
	})
}

func (r *rig) count(plugin, state string) int {
	for _, one := range r.manager.Count() {
		if one.Plugin == plugin && one.State == state {
			return one.Volumes
		}
	}
	return -1
}

// TestWhatAVolumeFailedOfHasChanged checks that Refresh retries a failed volume without the back-off.
func TestWhatAVolumeFailedOfHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("config", errors.New("it has no key"))
		if err := r.want(newPod("u1", "config")); err == nil {
			t.Fatal("it is there")
		}
		r.plugin.failing("config", nil)
		r.manager.Refresh("u1") // the clock stands still
		eventually.That(r.t, "the volume is there", func() bool { return r.manager.Ready("u1") })
	})
}

// TestWhatAVolumeWaitsForHasChanged checks that Retry ends the back-off of what waits for the change and of nothing
// else, before and after the pod, and of an operation that has begun before the change and fails after it.
func TestWhatAVolumeWaitsForHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		disks := func(waitsFor string) bool { return waitsFor == "CSI driver disks" }
		r.plugin.failing("data", waitError("CSI driver disks"))
		r.plugin.failing("other", waitError("CSI driver others"))
		if r.want(newPod("u1", "data")) == nil || r.want(newPod("u2", "other")) == nil {
			t.Fatal("they are there")
		}
		open := r.plugin.hanging("data")
		if pods := r.manager.Retry(disks); !slices.Equal(pods, []types.UID{"u1"}) {
			t.Errorf("retried are %v", pods)
		}
		eventually.That(r.t, "it is retried", func() bool { return r.plugin.underWay() == 1 })
		r.manager.Retry(disks) // this attempt does not know of the change yet
		open()
		eventually.That(r.t, "it is retried again", func() bool {
			return r.plugin.count("setup data") == 3 && r.plugin.underWay() == 0
		})
		r.plugin.failing("data", nil)
		r.manager.Retry(disks)
		eventually.That(r.t, "the volume is there", func() bool { return r.manager.Ready("u1") })
		r.plugin.failing("data", waitError("CSI driver disks"))
		if r.release("u1") == nil {
			t.Error("it is gone")
		}
		r.plugin.failing("data", nil)
		r.manager.Retry(disks) // the clock stands still
		eventually.That(r.t, "the volume is gone", func() bool { return len(r.manager.Describe("u1")) == 0 })
		if got := r.plugin.count("setup other"); got != 1 {
			t.Errorf("what waits for something else was tried %d times", got)
		}
	})
}

func TestABlockDeviceThatCannotBeHadHasItsOwnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("data", errors.New("no device"))
		pod := newPod("u1", "data")
		c := &pod.Spec.Containers[0]
		c.VolumeMounts, c.VolumeDevices = nil, []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
		const want = `MapVolume.SetUpDevice failed for volume "data" : no device`
		if err := r.want(pod); err == nil || err.Error() != want {
			t.Errorf("waited with %v, want %s", err, want)
		}
		if got := r.events.String(); got != "pod-u1 FailedMapVolume "+want {
			t.Errorf("events %q", got)
		}
	})
}

// TestAFailureBeforeTheWaitIsNotWaitedFor: the volume has failed since the pod was wanted, so the pod says so at once,
// and not after the next attempt.
func TestAFailureBeforeTheWaitIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("data", errors.New("no server"))
		pod := newPod("u1", "data")
		r.manager.Want(t.Context(), pod)
		synctest.Wait()
		if got := r.events.String(); !strings.Contains(got, "no server") {
			t.Fatalf("events %q before the wait", got)
		}
		if err := r.manager.Wait(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "no server") {
			t.Errorf("waited with %v", err)
		}
	})
}

// TestAVolumeThatIsBeingAttachedIsNoEvent checks that it becomes one after two minutes.
func TestAVolumeThatIsBeingAttachedIsNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("data", attachError{"volumeattachment csi-1"})
		if err := r.want(newPod("u1", "data")); err == nil || !strings.Contains(err.Error(), "volumeattachment csi-1") {
			t.Errorf("waited with %v", err)
		}
		if got := r.events.String(); got != "" {
			t.Errorf("events %q", got)
		}
		eventually.That(r.t, "an event", func() bool {
			r.clock.Step(30 * time.Second)
			return strings.Contains(r.events.String(), "pod-u1 FailedMount MountVolume.SetUp failed")
		})
	})
}

func TestVolumesAreListedWithTheirPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.plugin.failing("claimed", waitError("persistentvolumeclaim shop/mine"))
		if err := r.want(newPod("u1", "config")); err != nil {
			t.Fatal(err)
		}
		r.stop()
		r.start()
		pod := newPod("u2", "claimed")
		pod.Spec.Volumes[0].PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: "mine"}
		with(pod, v1.Volume{Name: "path", VolumeSource: v1.VolumeSource{ // it is left out
			HostPath: &v1.HostPathVolumeSource{Path: "/"},
		}})
		if err := r.want(pod); err == nil {
			t.Error("it is there")
		}
		synctest.Wait() // the other volume is set up beside it
		var got []string
		for _, v := range r.manager.List() {
			one := v.GetVolume()
			got = append(got, strings.Join([]string{v.GetPodUid(), v.GetNamespace(), v.GetPod(), one.GetName(), one.GetClaim(),
				one.GetDriver(), one.GetWaitsFor(), one.GetState().String(), fmt.Sprint(one.GetWantedSince() != nil)}, ","))
		}
		slices.Sort(got)
		want := []string{
			"u1,,,config,,disks.example.com,,VOLUME_STATE_FOUND,false",
			"u2,shop,pod-u2,claimed,mine,disks.example.com,persistentvolumeclaim shop/mine,VOLUME_STATE_SETTING_UP,true",
		}
		if !slices.Equal(got, want) {
			t.Errorf("listed are %q, want %q", got, want)
		}
	})
}

func TestAKindThatIsNotThereIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		for want, source := range map[string]v1.VolumeSource{
			`volume "data" of kind persistentVolumeClaim: it is not supported yet`:                             {PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}},
			`volume "data" of kind csi: it is not supported yet`:                                               {CSI: &v1.CSIVolumeSource{}},
			`volume "data" of kind ephemeral: it is not supported yet`:                                         {Ephemeral: &v1.EphemeralVolumeSource{}},
			`volume "data" of kind nfs: it is not supported yet`:                                               {NFS: &v1.NFSVolumeSource{}},
			`volume "data" of kind iscsi: it is not supported yet`:                                             {ISCSI: &v1.ISCSIVolumeSource{}},
			`volume "data" of kind gitRepo: Kubernetes has disabled it: use an emptyDir and an init container`: {GitRepo: &v1.GitRepoVolumeSource{}},
			`volume "data" of kind rbd: Kubernetes has removed it: use a claim with a CSI driver`:              {RBD: &v1.RBDVolumeSource{}},
			`there is no medium "Disk": leave it out, or say Memory`:                                           {EmptyDir: &v1.EmptyDirVolumeSource{Medium: "Disk"}},
		} {
			err := r.manager.Supports(with(newPod("u1"), v1.Volume{Name: "data", VolumeSource: source}))
			if unsupported := (*volumes.UnsupportedError)(nil); !errors.As(err, &unsupported) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
		}
		if err := r.manager.Supports(newPod("u1", "config")); err != nil {
			t.Error(err)
		}
	})
}

// TestTheFirstSetUpIsTraced checks that the first setup has a span below its caller's, and later ones have none.
func TestTheFirstSetUpIsTraced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		pod := newPod("u1", "config")
		ctx, parent := r.tracer.Start(t.Context(), "pod.sync")
		r.manager.Want(ctx, pod)
		if err := r.manager.Wait(ctx, pod); err != nil {
			t.Fatal(err)
		}
		r.manager.Refresh("u1")
		eventually.That(r.t, "a look", func() bool { return r.plugin.count("setup config") == 2 && r.plugin.underWay() == 0 })
		if err := r.manager.Release(ctx, "u1"); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, span := range r.spans.Ended() {
			name := span.Name()
			for _, a := range span.Attributes() {
				if a.Key == telemetry.AttrVolume || a.Key == telemetry.AttrVolumePlugin {
					name += " " + a.Value.AsString()
				}
			}
			if span.Parent().SpanID() != parent.SpanContext().SpanID() {
				t.Errorf("%s is below %v", name, span.Parent())
			}
			got = append(got, name)
		}
		if want := []string{"volume.setup config kubernetes.io/configmap", "volume.teardown config kubernetes.io/configmap"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// TestAPodsFolderThatCannotBeReadDelaysNoOther has a file in the place of a pod's directory of volumes.
func TestAPodsFolderThatCannotBeReadDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if err := os.MkdirAll(filepath.Join(r.dir, "broken"), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(r.dir, "broken", "volumes"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r.stop()
		r.start()
		if err := r.want(newPod("u1", "config")); err != nil {
			t.Error(err)
		}
		if err := r.release("broken"); err == nil || !strings.Contains(err.Error(), "the volumes of pod broken") {
			t.Errorf("release(broken) error = %v, want an error with %q", err, "the volumes of pod broken")
		}
	})
}
