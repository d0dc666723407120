package csi_test

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/services/syncloop/internal/pod/csimigration"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csi"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestUnstagingIsMeasured checks the kubelet's names of what is done after the pods of a volume have gone.
func TestUnstagingIsMeasured(t *testing.T) {
	r := newRig(t, csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	one := r.request(newPod("u1"), newPV("pv-1", "vol-1"))
	r.mount(one)
	if got := r.measured(); len(got) > 0 {
		t.Errorf("measured %q while it is in use", got)
	}
	r.driver.Set("NodeUnstageVolume", csidriver.Fails)
	r.unmount(one.Dir)
	eventually.That(t, "a failure is measured", func() bool {
		return slices.Contains(r.measured(), "kubernetes.io/csi:disks.example.com unmount_device false")
	})
	r.driver.Set("NodeUnstageVolume", 0)
	r.ends()
	eventually.That(t, "a success is measured", func() bool {
		return slices.Contains(r.measured(), "kubernetes.io/csi:disks.example.com unmount_device true")
	})
}

// TestMountingIsMeasured checks the kubelet's names of the parts of a mount.
func TestMountingIsMeasured(t *testing.T) {
	r := newRig(t, canStage)
	r.cluster.drivers[driverName] = nil // such a driver's volumes are attached
	r.cluster.attached["vol-1"] = nil
	pv := newPV("pv-1", "vol-1")
	pv.Spec.CSI.FSType = "ext4"
	one := r.request(newPod("u1"), pv)
	one.FSGroup = ptr.To(int64(os.Getgid()))
	r.node = func(string) error { return errors.New("Volume not attached according to node status") }
	fails(t, r, one, "Volume not attached")
	r.node = nil
	r.mount(one)
	const plugin = "kubernetes.io/csi:disks.example.com "
	want := []string{
		plugin + "verify_controller_attached_volume false", plugin + "verify_controller_attached_volume true",
		plugin + "volume_apply_access_control true",
	}
	if got := r.measured(); !slices.Equal(got, want) {
		t.Errorf("measured %q, want %q", got, want)
	}
	r.unmount(one.Dir)
	r.ends()
}

// timed are drivers whose calls are timed.
type timed struct {
	csi.Drivers
	metrics *csi.Metrics
}

// Conn implements csi.Drivers.
func (d timed) Conn(name string) (grpc.ClientConnInterface, error) {
	inner, err := d.Drivers.Conn(name)
	return timedConn{inner, d.metrics.Intercept(name)}, err
}

// timedConn is a connection with an interceptor.
type timedConn struct {
	grpc.ClientConnInterface
	intercept grpc.UnaryClientInterceptor
}

// Invoke implements grpc.ClientConnInterface.
func (c timedConn) Invoke(ctx context.Context, method string, in, out any, opts ...grpc.CallOption) error {
	call := func(ctx context.Context, method string, in, out any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		return c.ClientConnInterface.Invoke(ctx, method, in, out, opts...)
	}
	return c.intercept(ctx, method, in, out, nil, call, opts...)
}

// TestCallsForAMigratedVolumeSaySo checks that, as in the kubelet, calls that mount a migrated volume have a label that
// those that unmount it do not have.
func TestCallsForAMigratedVolumeSaySo(t *testing.T) {
	r := newRig(t, canStage)
	r.stop()
	registry := prometheus.NewRegistry()
	r.calls = csi.NewMetrics(registry)
	r.start()
	pv, err := csimigration.PersistentVolume(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle = driverName, "vol-1"
	one := r.request(newPod("u1"), pv)
	r.mount(one)
	r.unmount(one.Dir)
	r.ends()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range families[0].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		got[path.Base(labels["method_name"])] += labels["migrated"]
	}
	for method, want := range map[string]string{
		"NodeStageVolume": "true", "NodePublishVolume": "true", "NodeUnpublishVolume": "false", "NodeUnstageVolume": "false",
	} {
		if got[method] != want {
			t.Errorf("%s has migrated=%q, want %q", method, got[method], want)
		}
	}
}
