package syncloop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/internal/apiclient"
	"github.com/quartet-node/quartet/internal/components"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/podevents"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podchanges"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/inventory"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/require"
)

// testDriver is the name of the driver that csiDriver registers.
const testDriver = "test.csi.example.com"

// testPassword is the secret of the volume.
const testPassword = "open sesame"

// TestAClaimOfAClusterIsMountedByItsDriver has an API server, a driver that mounts, and a pod that waits until its
// claim is bound, its volume attached, the driver registered, and the secret of the volume there.
func TestAClaimOfAClusterIsMountedByItsDriver(t *testing.T) {
	require.Root(t, "mounting")
	c := cluster.Start(t)
	admin, root := c.Client(t), shortDir(t)
	noError(t, os.Mkdir(filepath.Join(root, "driver"), 0o700))
	driver := csidriver.New(filepath.Join(root, "driver"), csispec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csispec.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	noError(t, driver.Serve())
	t.Cleanup(driver.Stop)
	_, err := admin.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
		metav1.CreateOptions{})
	noError(t, err)
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	kubeconfig := c.Kubeconfig(t, cluster.NodeUser("node-1"), cluster.Nodes)
	manager, stored, claimsOf := clusterVolumes(t, kubeconfig, root, tracer)
	claim, pod := createClaim(t, admin), createPod(t, admin)
	claimsOf.Use(pod)
	ctx, span := tracer.Start(t.Context(), "pod.sync")
	manager.Want(ctx, pod)
	if err := manager.Wait(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "is not bound") {
		t.Errorf("before the claim is bound: %v", err)
	}
	waitsFor(t, manager, pod, "persistentvolumeclaim default/data")
	pv := bind(t, admin, claim, testDriver, v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
		Driver: testDriver, VolumeHandle: "vol-1",
		NodeStageSecretRef: &v1.SecretReference{Namespace: "default", Name: "key"},
	}})
	eventually.That(t, "the volume waits until it is attached", func() bool {
		names, _ := stored.volumes.VolumesInUse()
		return len(names) == 1 && string(names[0]) == "kubernetes.io/csi/"+testDriver+"^vol-1"
	})
	attach(t, admin, testDriver, "vol-1", storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv})
	waitsFor(t, manager, pod, "CSI driver "+testDriver)
	registrar := &csiDriver{endpoint: driver.Socket()}
	serveOn(t, filepath.Join(root, "plugins_registry/reg.sock"), func(s *grpc.Server) {
		registrationv1.RegisterRegistrationServer(s, registrar)
	})
	waitsFor(t, manager, pod, "secret default/key")
	_, err = admin.CoreV1().Secrets("default").Create(t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"},
		StringData: map[string]string{"password": testPassword}},
		metav1.CreateOptions{})
	noError(t, err)
	eventually.That(t, "the volume is mounted", func() bool { return manager.Ready(pod.UID) })
	span.End()
	wantSpans(t, spans.Ended())
	path := manager.Path(pod, &pod.Spec.Volumes[0])
	if want := filepath.Join(root, "pods", string(pod.UID), "volumes/kubernetes.io~csi", pv, "mount"); path != want {
		t.Errorf("mounted at %s, want %s", path, want)
	}
	if is, err := (volumes.Machine{}).IsMountPoint(path); err != nil || !is {
		t.Errorf("mounted %t, %v", is, err)
	}
	staged := driver.Calls("NodeStageVolume")[0].Request.(*csispec.NodeStageVolumeRequest) //nolint:forcetypeassert // it is
	if staged.GetPublishContext()["device"] != "sda" {
		t.Errorf("staged by %v", staged)
	}
	if usage, err := manager.Usage(t.Context(), pod, &pod.Spec.Volumes[0]); err != nil || *usage.CapacityBytes != 1000 {
		t.Errorf("measured %v, %v", usage, err)
	}
	if got := manager.Describe(pod.UID)[0]; got.GetClaim() != "data" || got.GetPersistentVolume() != pv {
		t.Errorf("described as %v", got)
	}
	noError(t, manager.Release(t.Context(), pod.UID))
	eventually.That(t, "the volume is unstaged", func() bool {
		names, _ := stored.volumes.VolumesInUse()
		return len(names) == 0
	})
	if len(driver.Calls("NodeUnstageVolume")) != 1 || len(driver.Wrong()) > 0 {
		t.Errorf("calls %v, wrong %v", driver.Calls(""), driver.Wrong())
	}
}

// wantSpans checks that the calls of the driver have spans below the volume, which is below the pod, with no secret.
func wantSpans(t *testing.T, spans []sdktrace.ReadOnlySpan) {
	t.Helper()
	byID := map[trace.SpanID]string{}
	for _, s := range spans {
		byID[s.SpanContext().SpanID()] = s.Name()
	}
	parents := map[string]string{}
	for _, s := range spans {
		parents[s.Name()] = byID[s.Parent().SpanID()]
		if text := fmt.Sprint(s.Attributes(), s.Events(), s.Status()); strings.Contains(text, testPassword) {
			t.Errorf("%s has the secret: %s", s.Name(), text)
		}
	}
	for child, parent := range map[string]string{
		"volume.setup": "pod.sync", "csi.NodeGetCapabilities": "volume.setup", "csi.NodeStageVolume": "volume.setup",
		"csi.NodePublishVolume": "volume.setup",
	} {
		if parents[child] != parent {
			t.Errorf("the span %s is below %q, want %q: %v", child, parents[child], parent, parents)
		}
	}
}

// waitsFor waits until the volume of a pod waits for something.
func waitsFor(t *testing.T, manager *volumes.Manager, pod *v1.Pod, what string) {
	t.Helper()
	eventually.That(t, "the volume waits for "+what, func() bool { return manager.Describe(pod.UID)[0].GetWaitsFor() == what })
}

// shortDir returns a directory with a short path, because those of sockets are limited.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "claims")
	noError(t, err)
	t.Cleanup(func() { noError(t, os.RemoveAll(dir)) })
	return dir
}

// clusterVolumes returns the volume manager of a node of a cluster, as the process has it, and what it depends on.
func clusterVolumes(
	t *testing.T, kubeconfig, root string, tracer trace.Tracer,
) (*volumes.Manager, *storage, claims.Source) {
	t.Helper()
	cfg, err := nodeconfig.Parse(nodeconfig.SyncLoop, []string{"--hostname-override", "node-1", "--kubeconfig",
		kubeconfig, "--root-dir", root}, io.Discard)
	noError(t, err)
	logger, registry := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	events := podevents.New(podevents.Config{
		NodeName: "node-1", Publish: func(*v1.Event) {}, Clock: clock.RealClock{}, Logger: logger,
	})
	parts := components.New(logger)
	h := &host{
		cfg: cfg, logger: logger, registry: registry, requests: apiclient.NewMetrics(registry), tracer: tracer,
		boot: "boot",
	}
	var stored *storage
	// It does what nodestatus does with the volumes in use, and a controller with the attached ones.
	askNode := func(context.Context) (*v1.Node, error) {
		names, _ := stored.volumes.VolumesInUse()
		node := &v1.Node{Status: v1.NodeStatus{VolumesInUse: names}}
		for _, name := range names {
			node.Status.VolumesAttached = append(node.Status.VolumesAttached, v1.AttachedVolume{Name: name})
		}
		return node, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	changes := podchanges.New()
	link, err := newLink(ctx, h, askNode, changes, events, parts)
	noError(t, err)
	published := inventory.New(stream.NewServedMetrics(registry, stream.NameStorage))
	devices, err := newPodDevices(h, askNode, published.Changed, func(types.UID) {}, parts)
	noError(t, err)
	stored, err = newStorage(h, askNode, link, changes, events, devices, published, parts)
	noError(t, err)
	manager, err := newVolumes(h, askNode, link, events, stored, parts)
	noError(t, err)
	parts.Run("retries of volumes", func(ctx context.Context) error {
		return stored.retry(ctx, manager, changes.Note(podchanges.Sync))
	})
	parts.Run("pod changes", func(ctx context.Context) error {
		return changes.Run(ctx, manager.Refresh,
			func(types.UID) {})
	})
	ended := make(chan error, 1)
	go func() { ended <- parts.Wait(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, parts.Close()); err != nil {
			t.Error(err)
		}
		events.Close()
	})
	return manager, stored, link.Claims
}

func createClaim(t *testing.T, admin kubernetes.Interface) *v1.PersistentVolumeClaim {
	t.Helper()
	claim, err := admin.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: ptr.To(""),
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	noError(t, err)
	return claim
}

// createPod creates a pod that mounts the claim and more volumes.
func createPod(t *testing.T, admin kubernetes.Interface, more ...v1.Volume) *v1.Pod {
	t.Helper()
	mounts := []v1.VolumeMount{{Name: "files", MountPath: "/files"}}
	for _, v := range more {
		mounts = append(mounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	pod, err := admin.CoreV1().Pods("default").Create(t.Context(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: v1.PodSpec{
			NodeName: "node-1", AutomountServiceAccountToken: ptr.To(false),
			Containers: []v1.Container{{Name: "c", Image: "i:1", VolumeMounts: mounts}},
			Volumes: append([]v1.Volume{{Name: "files", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}}, more...),
		},
	}, metav1.CreateOptions{})
	noError(t, err)
	return pod
}

// bind binds a claim to a new persistent volume of a driver, as the controllers of a cluster do, and returns its name.
func bind(
	t *testing.T, admin kubernetes.Interface, claim *v1.PersistentVolumeClaim, driver string,
	source v1.PersistentVolumeSource,
) string {
	t.Helper()
	_, err := admin.StorageV1().CSIDrivers().Create(t.Context(),
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}}, metav1.CreateOptions{})
	noError(t, err)
	pv, err := admin.CoreV1().PersistentVolumes().Create(t.Context(), &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes,
			ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data", UID: claim.UID},
			PersistentVolumeSource: source,
		},
	}, metav1.CreateOptions{})
	noError(t, err)
	claim.Spec.VolumeName = pv.Name
	claim, err = admin.CoreV1().PersistentVolumeClaims("default").Update(t.Context(), claim, metav1.UpdateOptions{})
	noError(t, err)
	claim.Status.Phase, claim.Status.Capacity = v1.ClaimBound, pv.Spec.Capacity
	_, err = admin.CoreV1().PersistentVolumeClaims("default").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	noError(t, err)
	return pv.Name
}

// attach attaches a volume of a driver to the node, as the attacher of the driver does.
func attach(
	t *testing.T, admin kubernetes.Interface, driver, handle string, source storagev1.VolumeAttachmentSource,
) {
	t.Helper()
	attachment, err := admin.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: claims.AttachmentName(driver, handle, "node-1")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "node-1", Source: source},
	}, metav1.CreateOptions{})
	noError(t, err)
	attachment.Status = storagev1.VolumeAttachmentStatus{
		Attached: true, AttachmentMetadata: map[string]string{"device": "sda"},
	}
	_, err = admin.StorageV1().VolumeAttachments().UpdateStatus(t.Context(), attachment, metav1.UpdateOptions{})
	noError(t, err)
}
