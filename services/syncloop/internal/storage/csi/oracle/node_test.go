package oracle_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csi"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/csidrivers"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/persistentvolumes"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/plugins"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
	"github.com/quartet-node/quartet/test/csidriver"
	"github.com/quartet-node/quartet/test/eventually"
)

// node is syncloop's storage, from the plugin manager to the volume manager.
type node struct {
	t       *testing.T
	story   *story
	drivers *csidrivers.Drivers
	csi     *csi.Plugin
	volumes *volumes.Manager
	root    string
}

// newNode returns a node with which the driver has registered itself by a socket of its own.
func newNode(t *testing.T, root, socket string, s *story) *node {
	t.Helper()
	n := &node{t: t, story: s, root: root}
	n.drivers = csidrivers.New(csidrivers.Config{
		Object: n.Driver, Changed: func() {}, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(n.drivers.Close)
	registry := filepath.Join(root, "plugins_registry")
	manager := plugins.New(plugins.Config{
		Dir: registry, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		Handlers: map[string]plugins.Handler{registrationv1.CSIPlugin: n.drivers},
	})
	var err error
	n.csi, err = csi.New(csi.Config{
		Root: root, Boot: "boot-1", NodeName: nodeName, Drivers: n.drivers, Cluster: n, Claims: n, Tokens: n,
		Mounts: volumes.Machine{}, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.volumes, err = volumes.New(volumes.Config{
		PodsDir: filepath.Join(root, "pods"), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		Plugins: persistentvolumes.Plugins(persistentvolumes.Config{Claims: n, Kinds: []persistentvolumes.Kind{n.csi}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, manager.Run)
	run(t, n.csi.Run)
	run(t, n.volumes.Run)
	eventually.That(t, "the folder is there", func() bool { return exists(registry) })
	run(t, func(ctx context.Context) error { return csidriver.Register(ctx, registry, driverName, socket) })
	eventually.That(t, "the driver is registered", func() bool { return len(n.drivers.Nodes()) == 1 })
	return n
}

// run runs a function until the end of the test.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f(ctx) // the error of ctx
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// Driver implements csi.Cluster.
func (n *node) Driver(context.Context, string) (*storagev1.CSIDriver, error) {
	return n.story.driver(), nil
}

// Attachment implements csi.Cluster.
func (n *node) Attachment(context.Context, string, string) (map[string]string, error) {
	return attached(), nil
}

// AttachmentNow implements csi.Cluster.
func (n *node) AttachmentNow(context.Context, string, string) (map[string]string, error) {
	return attached(), nil
}

// Refused implements csi.Cluster.
func (n *node) Refused(types.UID, *v1.Secret) {}

// Accepted implements csi.Cluster.
func (n *node) Accepted(types.UID, string, string) {}

// Secret implements csi.Cluster.
func (n *node) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if s := secret(); s.Namespace == namespace && s.Name == name {
		return s, nil
	}
	return nil, fmt.Errorf("secrets %q not found", name)
}

// Token implements csi.Tokens. It is not called.
func (n *node) Token(context.Context, *v1.Pod, string, int64) (string, error) {
	return "", fmt.Errorf("there are no tokens")
}

// MarkExpanding implements csi.Claims.
func (n *node) MarkExpanding(
	_ context.Context, claim *v1.PersistentVolumeClaim,
) (*v1.PersistentVolumeClaim, error) {
	return claim, nil
}

// MarkExpanded implements csi.Claims.
func (n *node) MarkExpanded(
	_ context.Context, claim *v1.PersistentVolumeClaim, _ resource.Quantity,
) (*v1.PersistentVolumeClaim, error) {
	return claim, nil
}

// MarkExpansionFailed implements csi.Claims.
func (n *node) MarkExpansionFailed(
	_ context.Context, claim *v1.PersistentVolumeClaim, cause error, _ bool,
) (*v1.PersistentVolumeClaim, error) {
	n.t.Errorf("the expansion fails: %v", cause)
	return claim, nil
}

// Claim implements persistentvolumes.Claims.
func (n *node) Claim(
	context.Context, *v1.Pod, *v1.Volume,
) (*v1.PersistentVolumeClaim, *v1.PersistentVolume, error) {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "shop"}}
	claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	return claim, n.story.pv(), nil
}

// pod returns a pod with the volume.
func (n *node) pod(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	source := v1.VolumeSource{CSI: n.story.inline}
	if n.story.inline == nil {
		source.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data", ReadOnly: n.story.readOnly}
	}
	app := v1.Container{Name: "app", VolumeMounts: []v1.VolumeMount{{Name: volumeName, MountPath: "/data"}}}
	if n.story.block {
		app = v1.Container{Name: "app", VolumeDevices: []v1.VolumeDevice{{Name: volumeName, DevicePath: "/dev/data"}}}
	}
	pod.Spec.Containers = []v1.Container{app}
	pod.Spec.Volumes = []v1.Volume{{Name: volumeName, VolumeSource: source}}
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: n.story.group}
	return pod
}

// setUp waits until a pod has its volume, or for a block device until it has failed.
func (n *node) setUp(pod *v1.Pod) {
	n.t.Helper()
	wanted := n.pod(pod)
	ctx, cancel := context.WithTimeout(n.t.Context(), 30*time.Second)
	defer cancel()
	n.volumes.Want(ctx, wanted)
	err := n.volumes.Wait(ctx, wanted)
	if n.story.block {
		// The mock driver publishes a block device as a directory.
		if err == nil || !strings.Contains(err.Error(), "not a directory") {
			n.t.Fatalf("a directory is taken for a block device: %v", err)
		}
		return
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// tearDown releases the volumes of a pod.
func (n *node) tearDown(pod *v1.Pod) {
	n.t.Helper()
	if err := n.volumes.Release(n.t.Context(), pod.UID); err != nil {
		n.t.Fatal(err)
	}
}
