package csi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

func TestAVolumeIsStagedOnceAndPublishedForEachPod(t *testing.T) {
	r := newRig(t, canStage)
	pv := newPV("pv-1", "vol-1")
	one, two := r.request(newPod("u1"), pv), r.request(newPod("u2"), pv)
	for range 2 { // the second time it is there already
		r.mount(one)
		r.mount(two)
	}
	staging := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume").GetStagingTargetPath()
	if ok, _ := filepath.Match(r.root+"/plugins/kubernetes.io/csi/disks.example.com/*/globalmount", staging); !ok {
		t.Errorf("staged at %s", staging)
	}
	if got := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume"); got.GetTargetPath() != filepath.Join(two.Dir, "mount") || got.GetStagingTargetPath() != staging {
		t.Errorf("published by %v, want TargetPath %v and StagingTargetPath %v",
			got, filepath.Join(two.Dir, "mount"), staging)
	}
	if got := methods(r); !slices.Equal(got, []string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume"}) {
		t.Errorf("calls: %v, want %v", got, []string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume"})
	}
	hasRecord(t, filepath.Join(two.Dir, "vol_data.json"), map[string]string{
		"specVolID": "pv-1", "volumeHandle": "vol-1", "driverName": driverName, "nodeName": "node-1",
		"volumeLifecycleMode": "Persistent",
	})
	hasRecord(t, filepath.Join(filepath.Dir(staging), "vol_data.json"), map[string]string{"volumeHandle": "vol-1", "driverName": driverName})
	if err := os.WriteFile(filepath.Join(one.Dir, "mount/file"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.unmount(one.Dir)
	if text, err := os.ReadFile(filepath.Join(two.Dir, "mount/file")); string(text) != "hello" || err != nil {
		t.Errorf("ReadFile() = %q, %v, want %q", text, err, "hello")
	}
	r.unmount(two.Dir)
	r.ends()
	if n := len(r.driver.Calls("NodeUnstageVolume")); n != 1 {
		t.Errorf("unstaged %d times, want 1", n)
	}
	r.unmount(two.Dir) // again
}

// methods returns the calls of the driver by their methods.
func methods(r *rig) (names []string) {
	for _, c := range r.driver.Calls("") {
		names = append(names, c.Method)
	}
	return names
}

// hasRecord checks the kubelet's keys of a record.
func hasRecord(t *testing.T, file string, want map[string]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s: %s is %q, want %q", file, key, got[key], value)
		}
	}
}

func TestADriverWithoutStagingIsOnlyAskedToPublish(t *testing.T) {
	r := newRig(t)
	one := r.request(newPod("u1"), newPV("pv-1", "a/handle with/slashes"))
	r.mount(one)
	r.unmount(one.Dir)
	r.ends()
	if got := methods(r); !slices.Equal(got, []string{"NodePublishVolume", "NodeUnpublishVolume"}) {
		t.Errorf("calls: %v, want %v", got, []string{"NodePublishVolume", "NodeUnpublishVolume"})
	}
}

func TestADriverThatIsNotRegisteredIsWaitedFor(t *testing.T) {
	r := newRig(t, canStage)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.drivers.register(t, driverName, "")
	fails(t, r, one, "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name disks.example.com not found in the list of registered CSI drivers")
	r.unmount(one.Dir) // the driver was never asked
	r.drivers.register(t, driverName, r.driver.Socket())
	r.mount(one)
	r.drivers.register(t, driverName, "")
	if err := r.plugin.Unmount(t.Context(), one.Dir); err == nil || !strings.Contains(err.Error(), "Unmounter.TearDownAt failed to get CSI client: driver name disks.example.com not found") {
		t.Error(err)
	}
	r.drivers.register(t, driverName, r.driver.Socket())
	r.unmount(one.Dir)
	r.ends()
}

// TestAStagedVolumeWaitsForItsDriver checks that it is unstaged as soon as the driver is registered again, and how it
// is shown until then.
func TestAStagedVolumeWaitsForItsDriver(t *testing.T) {
	r := newRig(t, canStage)
	r.stop()
	now := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)) // the back-off never ends
	r.clock = now
	r.start()
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	if unused := r.plugin.Unused(); len(unused) != 0 {
		t.Errorf("unused are %v", unused)
	}
	if got := r.plugin.Driver(one.Dir); got != driverName {
		t.Errorf("the driver is %q", got)
	}
	r.driver.Set("NodeUnstageVolume", csidriver.Fails)
	r.unmount(one.Dir)
	failsWith := func(text string) (last *enginev1.Volume) {
		eventually.That(t, text, func() bool {
			if unused := r.plugin.Unused(); len(unused) == 1 {
				last = unused[0]
			}
			return strings.Contains(last.GetLastError(), text)
		})
		return last
	}
	failsWith("code = Internal")
	r.drivers.register(t, driverName, "")
	r.driver.Set("NodeUnstageVolume", csidriver.None)
	now.Step(time.Hour)
	last := failsWith("not found in the list of registered CSI drivers")
	if last.GetName() != "vol-1" || last.GetDriver() != driverName || last.GetWaitsFor() != "CSI driver disks.example.com" ||
		last.GetNextTryAt() == nil || last.GetWantedSince() == nil || last.GetPath() == "" {
		t.Errorf("shown as %v", last)
	}
	r.plugin.Retry() // of another driver
	r.drivers.register(t, driverName, r.driver.Socket())
	r.plugin.Retry() // the clock stands still
	r.ends()
}

// TestAnUnstagingThatHangsSaysWhoDoesNotAnswer is how a staged volume is shown whose driver hangs.
func TestAnUnstagingThatHangsSaysWhoDoesNotAnswer(t *testing.T) {
	r := newRig(t, canStage)
	r.stop()
	now := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	r.clock = now
	r.start()
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	r.driver.Set("NodeUnstageVolume", csidriver.Hangs)
	r.unmount(one.Dir)
	eventually.That(t, "it hangs", func() bool { return len(r.driver.Calls("NodeUnstageVolume")) == 1 })
	if got := r.plugin.Unused()[0].GetWaitsFor(); got != "" {
		t.Errorf("at first it waits for %q", got)
	}
	now.Step(volumes.SlowAfter)
	if got := r.plugin.Unused()[0].GetWaitsFor(); got != "CSI driver "+driverName+" to answer NodeUnstageVolume" {
		t.Errorf("it waits for %q", got)
	}
	r.heal("NodeUnstageVolume") // it ends the call
	eventually.That(t, "it has failed", func() bool { return r.plugin.Unused()[0].GetLastError() != "" })
	now.Step(time.Hour)
	r.ends()
}

// fails checks the error of a mount.
func fails(t *testing.T, r *rig, request persistentvolumes.Request, want string) {
	t.Helper()
	if _, err := r.plugin.Mount(t.Context(), request); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestRequestsToADriverHaveAllFields(t *testing.T) {
	r := newRig(t, canStage)
	object := newObject()
	object.Spec.AttachRequired, object.Spec.PodInfoOnMount = nil, ptr.To(true)
	object.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: ptr.To[int64](600)}}
	r.cluster.drivers[driverName] = object
	r.cluster.attached["vol-1"] = map[string]string{"device": "sda"}
	r.cluster.secrets["ns/stage"] = &v1.Secret{Data: map[string][]byte{"key": []byte("stage " + secretText)}}
	r.cluster.secrets["ns/publish"] = &v1.Secret{Data: map[string][]byte{"key": []byte(secretText)}}
	pv := newPV("pv-1", "vol-1")
	pv.Spec.MountOptions = []string{"noatime"}
	source := pv.Spec.CSI
	source.FSType, source.VolumeAttributes = "xfs", map[string]string{"pool": "fast"}
	source.NodeStageSecretRef = &v1.SecretReference{Namespace: "ns", Name: "stage"}
	source.NodePublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "publish"}
	one := r.request(newPod("u1"), pv)
	one.ReadOnly = true
	r.mount(one)
	stage := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume")
	capability := stage.GetVolumeCapability()
	if capability.GetMount().GetFsType() != "xfs" || !slices.Equal(capability.GetMount().GetMountFlags(), []string{"noatime"}) || capability.GetAccessMode().GetMode() != csispec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("the capability is %v, want Mount.FsType %q, Mount.MountFlags %v and AccessMode.Mode %v",
			capability, "xfs", []string{"noatime"}, csispec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	}
	if stage.GetSecrets()["key"] != "stage "+secretText || stage.GetPublishContext()["device"] != "sda" || !maps.Equal(stage.GetVolumeContext(), source.VolumeAttributes) {
		t.Errorf("staged with %v, want key %v, device %q and VolumeConwith %v",
			stage, "stage "+secretText, "sda", source.VolumeAttributes)
	}
	publish := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume")
	want := map[string]string{
		"pool": "fast", "csi.storage.k8s.io/pod.name": "pod-u1", "csi.storage.k8s.io/pod.namespace": "shop",
		"csi.storage.k8s.io/pod.uid": "u1", "csi.storage.k8s.io/serviceAccount.name": "clerk",
		"csi.storage.k8s.io/ephemeral":             "false",
		"csi.storage.k8s.io/serviceAccount.tokens": `{"vault":{"token":"token-of-pod-u1-for-vault-600","expirationTimestamp":null}}`,
	}
	if got := publish.GetVolumeContext(); !maps.Equal(got, want) || !publish.GetReadonly() || publish.GetSecrets()["key"] != secretText || publish.GetPublishContext()["device"] != "sda" {
		t.Errorf("published with %v", publish)
	}
	if len(source.VolumeAttributes) != 1 {
		t.Errorf("the persistent volume is changed: %v", source)
	}
	r.unmount(one.Dir)
	r.ends()
}

// TestNoSecretIsInAnError lets the driver answer with everything that it was told.
func TestNoSecretIsInAnErrorOrASpan(t *testing.T) {
	r := newRig(t)
	r.stop()
	recorder := tracetest.NewSpanRecorder()
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("test")
	r.start()
	r.driver.Set("NodePublishVolume", 1)
	object := newObject()
	object.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
	object.Spec.ServiceAccountTokenInSecrets = ptr.To(true)
	r.cluster.drivers[driverName] = object
	r.cluster.secrets["ns/publish"] = &v1.Secret{Data: map[string][]byte{"key": []byte(secretText)}}
	pv := newPV("pv-1", "vol-1")
	pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "publish"}
	_, err := r.plugin.Mount(t.Context(), r.request(newPod("u1"), pv))
	if err == nil || strings.Contains(err.Error(), secretText) || strings.Contains(err.Error(), "token-of") || !strings.Contains(err.Error(), "***stripped***") {
		t.Error(err)
	}
	for _, span := range recorder.Ended() {
		if text := fmt.Sprint(span.Attributes(), span.Events(), span.Status()); strings.Contains(text, secretText) ||
			strings.Contains(text, "token-of") {
			t.Errorf("the span %s has a secret: %s", span.Name(), text)
		}
	}
	if got := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume"); got.GetSecrets()["csi.storage.k8s.io/serviceAccount.tokens"] == "" || got.GetSecrets()["key"] == "" {
		t.Errorf("published with %v", got)
	}
}

func TestAccessModes(t *testing.T) {
	type mode = csispec.VolumeCapability_AccessMode_Mode
	for _, supported := range []bool{false, true} {
		var can []csispec.NodeServiceCapability_RPC_Type
		if supported {
			can = append(can, csispec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
		}
		r := newRig(t, can...)
		for access, want := range map[v1.PersistentVolumeAccessMode][2]mode{
			v1.ReadWriteOnce: {
				csispec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
				csispec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
			},
			v1.ReadWriteOncePod: {
				csispec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
				csispec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
			},
			v1.ReadOnlyMany: {
				csispec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
				csispec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
			},
			v1.ReadWriteMany: {
				csispec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
				csispec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
			},
		} {
			pv := newPV("pv-"+strings.ToLower(string(access)), string(access))
			pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{access}
			r.mount(r.request(newPod("u1"), pv))
			expected := want[0]
			if supported {
				expected = want[1]
			}
			if got := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume").GetVolumeCapability().GetAccessMode().GetMode(); got != expected {
				t.Errorf("%s: %s, want %s", access, got, expected)
			}
		}
	}
}

func TestAVolumeForOnePodIsForOnePod(t *testing.T) {
	r := newRig(t, canStage)
	pv := newPV("pv-1", "vol-1")
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	one, two := r.request(newPod("u1"), pv), r.request(newPod("u2"), pv)
	r.mount(one)
	fails(t, r, two, "volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	r.unmount(one.Dir)
	if got := r.freed(); !slices.Equal(got, []types.UID{"u2"}) {
		t.Errorf("woken are %v, want the pod that waits", got)
	}
	r.mount(two)
	r.unmount(two.Dir)
	r.ends()
}

func TestTheGroupOfAPod(t *testing.T) {
	file := ptr.To(storagev1.FileFSGroupPolicy)
	byType := ptr.To(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	for name, c := range map[string]struct {
		policy   *storagev1.FSGroupPolicy
		fsType   string
		mode     v1.PersistentVolumeAccessMode
		readOnly bool
		can      []csispec.NodeServiceCapability_RPC_Type
		// changed is true if syncloop changes the group, delegated if the driver gets it.
		changed, delegated bool
	}{
		"file":               {policy: file, mode: v1.ReadWriteMany, changed: true},
		"none":               {policy: ptr.To(storagev1.NoneFSGroupPolicy), fsType: "ext4", mode: v1.ReadWriteOnce},
		"with a type":        {policy: byType, fsType: "ext4", mode: v1.ReadWriteOnce, changed: true},
		"without a type":     {policy: byType, mode: v1.ReadWriteOnce},
		"for many nodes":     {policy: byType, fsType: "ext4", mode: v1.ReadWriteMany},
		"for one pod":        {policy: byType, fsType: "ext4", mode: v1.ReadWriteOncePod, changed: true},
		"read-only":          {policy: file, mode: v1.ReadWriteOnce, readOnly: true},
		"the driver does it": {policy: file, mode: v1.ReadWriteOnce, delegated: true, can: []csispec.NodeServiceCapability_RPC_Type{csispec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, append(c.can, canStage)...)
			r.cluster.drivers[driverName].Spec.FSGroupPolicy = c.policy
			pv := newPV("pv-1", "vol-1")
			pv.Spec.CSI.FSType, pv.Spec.AccessModes = c.fsType, []v1.PersistentVolumeAccessMode{c.mode}
			one := r.request(newPod("u1"), pv)
			one.FSGroup, one.ReadOnly = ptr.To[int64](4711), c.readOnly
			r.mount(one)
			if changed := groupOf(t, r.driver.Volume("vol-1")) == 4711; changed != c.changed {
				t.Errorf("the group is changed: %t, want %t", changed, c.changed)
			}
			delegated := last[*csispec.NodeStageVolumeRequest](r, "NodeStageVolume").GetVolumeCapability().GetMount().GetVolumeMountGroup() == "4711" &&
				last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume").GetVolumeCapability().GetMount().GetVolumeMountGroup() == "4711"
			if delegated != c.delegated {
				t.Errorf("the driver gets the group: %t, want %t", delegated, c.delegated)
			}
		})
	}
}

func TestADriverIsAskedToPublishAgain(t *testing.T) {
	r := newRig(t, canStage)
	r.cluster.drivers[driverName].Spec.RequiresRepublish = ptr.To(true)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	r.mount(one)
	r.driver.Set("NodePublishVolume", 1)
	fails(t, r, one, "NodePublishVolume fails as asked")
	r.driver.Set("NodePublishVolume", 0)
	if got := methods(r); !slices.Equal(got, []string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodePublishVolume"}) {
		t.Errorf("calls: %v, want %v",
			got, []string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodePublishVolume"})
	}
	if at := mountsBelow(t, one.Dir); len(at) != 1 {
		t.Errorf("after a failure are mounted: %v", at)
	}
	r.unmount(one.Dir)
	r.ends()
}

func TestAnInlineVolume(t *testing.T) {
	r := newRig(t, canStage)
	pod := newPod("u1")
	one := persistentvolumes.Request{Pod: pod, Dir: r.dir("u1", "inline"), Volume: &v1.Volume{Name: "inline", VolumeSource: v1.VolumeSource{
		CSI: &v1.CSIVolumeSource{
			Driver: driverName, ReadOnly: ptr.To(true), FSType: ptr.To("ext4"), VolumeAttributes: map[string]string{"size": "1"},
			NodePublishSecretRef: &v1.LocalObjectReference{Name: "key"},
		},
	}}}
	r.cluster.secrets["shop/key"] = &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, Data: map[string][]byte{"k": []byte("v")}}
	fails(t, r, one, `volume mode "Ephemeral" not supported by driver disks.example.com (only supports ["Persistent"])`)
	inline := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}
	r.cluster.drivers[driverName].Spec.VolumeLifecycleModes = inline
	r.mount(one)
	fails(t, r, r.request(pod, newPV("pv-1", "vol-1")), `volume mode "Persistent" not supported by driver`)
	publish := last[*csispec.NodePublishVolumeRequest](r, "NodePublishVolume")
	// The SHA-256 of "u1inline".
	if want := "csi-"; !strings.HasPrefix(publish.GetVolumeId(), want) || len(publish.GetVolumeId()) != 68 || !publish.GetReadonly() || publish.GetSecrets()["k"] != "v" || publish.GetStagingTargetPath() != "" || publish.GetVolumeContext()["size"] != "1" {
		t.Errorf("published by %v", publish)
	}
	hasRecord(t, filepath.Join(one.Dir, "vol_data.json"), map[string]string{"volumeLifecycleMode": "Ephemeral", "specVolID": "inline"})
	r.stop()
	r.start()
	r.unmount(one.Dir)
	r.ends()
}

func TestTheVolumesInUse(t *testing.T) {
	r := newRig(t, canStage)
	r.cluster.drivers[driverName] = nil // such a driver's volumes are attached
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	fails(t, r, one, "the volume is not attached")
	want := []v1.UniqueVolumeName{"kubernetes.io/csi/disks.example.com^vol-1"}
	if got := r.inUse(); !slices.Equal(got, want) || r.changes() == 0 {
		t.Errorf("in use while it is waited for: %v, %d changes", got, r.changes())
	}
	r.cluster.attached["vol-1"] = nil
	r.mount(one)
	r.stop()
	r.start()
	if got := r.inUse(); !slices.Equal(got, want) {
		t.Errorf("in use after a restart: %v", got)
	}
	before := r.changes()
	r.driver.Set("NodeUnstageVolume", 1)
	r.unmount(one.Dir)
	if got := r.inUse(); !slices.Equal(got, want) {
		t.Errorf("in use while it is staged: %v, want %v", got, want)
	}
	r.driver.Set("NodeUnstageVolume", 0)
	r.ends()
	if got := r.inUse(); len(got) > 0 || r.changes() == before {
		t.Errorf("in use at the end: %v", got)
	}
}

func (r *rig) inUse() []v1.UniqueVolumeName {
	names, _ := r.plugin.VolumesInUse()
	return names
}

func TestADriverMeasuresItsVolumes(t *testing.T) {
	r := newRig(t, canStage, csispec.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	if _, err := r.plugin.Usage(t.Context(), one.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	r.mount(one)
	got, err := r.plugin.Usage(t.Context(), one.Dir)
	if err != nil || *got.CapacityBytes != 1000 || *got.UsedBytes != 5 || *got.AvailableBytes != 995 || *got.Inodes != 0 {
		t.Errorf("measured %+v, %v", got, err)
	}
	if path := last[*csispec.NodeGetVolumeStatsRequest](r, "NodeGetVolumeStats").GetVolumePath(); path != filepath.Join(one.Dir, "mount") {
		t.Errorf("measured at %s, want %s", path, filepath.Join(one.Dir, "mount"))
	}
	r.unmount(one.Dir)
	r.ends()
	without := newRig(t)
	without.mount(without.request(newPod("u1"), newPV("pv-1", "vol-1")))
	if _, err := without.plugin.Usage(t.Context(), without.dir("u1", "pv-1")); !errors.Is(err, volumes.ErrNotMeasured) {
		t.Errorf("a driver that does not measure: %v", err)
	}
}
