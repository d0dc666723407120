package show

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/google/go-cmp/cmp"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/layout"
)

// ListVolumes implements EngineService.
func (f *fakeEngine) ListVolumes(context.Context, *enginev1.ListVolumesRequest) (*enginev1.ListVolumesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &enginev1.ListVolumesResponse{}
	for _, v := range f.volumes {
		answer.Volumes = append(answer.Volumes, proto.CloneOf(v))
	}
	return answer, nil
}

func (n *node) putVolumes(volumes ...*enginev1.PodVolume) {
	n.engine.mu.Lock()
	defer n.engine.mu.Unlock()
	n.engine.volumes = volumes
}

func podVolume(namespace, pod string, v *enginev1.Volume) *enginev1.PodVolume {
	return &enginev1.PodVolume{PodUid: "u-" + pod, Namespace: namespace, Pod: pod, Volume: v}
}

// volumes returns a volume of every state.
func volumes() []*enginev1.PodVolume {
	return []*enginev1.PodVolume{
		podVolume("default", "web-node-1", &enginev1.Volume{
			Name: "settings", Plugin: "kubernetes.io/configmap", State: enginev1.VolumeState_VOLUME_STATE_SETTING_UP,
			Path: "/r/pods/u-web/volumes/kubernetes.io~configmap/settings", LastError: "configmap \"web\"\nnot found",
			NextTryAt: timestamppb.New(now.Add(7 * time.Second)), WantedSince: timestamppb.New(ago(time.Minute)),
		}),
		podVolume("shop", "db-0", &enginev1.Volume{
			Name: "data", Plugin: "kubernetes.io/csi", State: enginev1.VolumeState_VOLUME_STATE_READY, Claim: "data-db-0",
			PersistentVolume: "pvc-1", Driver: "disks.example.com", WantedSince: timestamppb.New(ago(3 * time.Hour)),
		}),
		podVolume("shop", "db-1", &enginev1.Volume{
			Name: "data", Plugin: "kubernetes.io/claim", State: enginev1.VolumeState_VOLUME_STATE_SETTING_UP, Claim: "data-db-1",
			WaitsFor: "persistentvolumeclaim shop/data-db-1", LastError: "PVC is not bound",
			NextTryAt: timestamppb.New(now.Add(time.Second)), WantedSince: timestamppb.New(ago(5 * time.Second)),
		}),
		{PodUid: "6f1d2c1e-8a53-4c4f-9a55-0d3c1b2f7e10", Volume: &enginev1.Volume{
			Name: "pvc-2", Plugin: "kubernetes.io/csi", State: enginev1.VolumeState_VOLUME_STATE_FOUND, Driver: "disks.example.com",
		}},
		{Volume: &enginev1.Volume{
			Name: "vol-3", Plugin: "kubernetes.io/csi", State: enginev1.VolumeState_VOLUME_STATE_TEARING_DOWN,
			Driver: "disks.example.com", WaitsFor: "CSI driver disks.example.com", WantedSince: timestamppb.New(ago(time.Second)),
			LastError: "driver name disks.example.com not found in the list of registered CSI drivers",
			NextTryAt: timestamppb.New(ago(time.Second)),
		}},
	}
}

func TestGetVolumes(t *testing.T) {
	n := newNode(t)
	n.serve(layout.SyncLoop)
	if got := n.must("get", "volumes"); got != "There are no volumes of pods on this node.\n" {
		t.Errorf("without volumes: %q", got)
	}
	n.putPod(pod("default", "web-node-1", "main"), "file", syncing)
	n.putVolumes(volumes()...)
	golden(t, "volumes.txt", n.must("get", "volumes"))
	golden(t, "volumes-wide.txt", n.must("get", "volume", "-o", "wide"))
	golden(t, "volumes-pod.txt", n.must("get", "vol", "web", "shop/db-1"))
	golden(t, "volumes-namespace.json", n.must("get", "volumes", "-n", "shop", "-o", "json"))
	golden(t, "volumes-name.txt", n.must("get", "volumes", "-o", "name"))
	_, _, err := n.run("get", "volumes", "none")
	const want = `there is no pod "none": there are web-node-1, shop/db-0, shop/db-1, 6f1d2c1e-8a53-4c4f-9a55-0d3c1b2f7e10`
	if err == nil || err.Error() != want {
		t.Errorf("a pod that is not there: %v", err)
	}
}

func TestWatchVolumesPrintsEachChangeOnce(t *testing.T) {
	n := newNode(t)
	stop := n.serve(layout.SyncLoop)
	all := volumes()[1:3]
	n.putVolumes(all...)
	r := n.start("get", "volumes", "-w")
	r.until(r.out, "data-db-1")
	scratch := podVolume("shop", "db-1", &enginev1.Volume{
		Name: "scratch", Plugin: "kubernetes.io/csi", State: enginev1.VolumeState_VOLUME_STATE_READY, PersistentVolume: "pvc-8",
	})
	bound := proto.CloneOf(all[1])
	bound.Volume.Driver, bound.Volume.Plugin = "disks.example.com", "kubernetes.io/csi"
	bound.Volume.State, bound.Volume.PersistentVolume = enginev1.VolumeState_VOLUME_STATE_READY, "pvc-9"
	bound.Volume.WaitsFor, bound.Volume.LastError, bound.Volume.NextTryAt = "", "", nil
	n.putVolumes(all[0], all[1], scratch)
	n.poll(r, r.out, "pvc-8")
	n.putVolumes(all[0], bound, scratch)
	n.poll(r, r.out, "pvc-9")
	stop()
	n.poll(r, r.errOut, "syncloop is unreachable; waiting until it is reachable again\n")
	n.serve(layout.SyncLoop)
	n.putVolumes(bound)
	n.poll(r, r.out, "removed")
	r.untilTrue("both lines are printed", func() bool {
		out := r.out.String()
		return strings.Count(out, "removed") == 2 && strings.HasSuffix(out, "\n")
	})
	var got []string
	for line := range strings.Lines(r.out.String()) {
		cells := strings.Fields(line)
		got = append(got, strings.Join(cells[:len(cells)-1], " ")) // without the age
	}
	want := []string{
		"NAME POD KIND CLAIM PV DRIVER STATE WAITS FOR",
		"data shop/db-0 csi data-db-0 pvc-1 disks.example.com in place <none>",
		"data shop/db-1 claim data-db-1 <none> <none> not in place yet persistentvolumeclaim shop/data-db-1",
		"scratch shop/db-1 csi <none> pvc-8 <none> in place <none>",
		"data shop/db-1 csi data-db-1 pvc-9 disks.example.com in place <none>",
		"data shop/db-0 csi data-db-0 pvc-1 disks.example.com removed <none>",
		"scratch shop/db-1 csi <none> pvc-8 <none> removed <none>",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
