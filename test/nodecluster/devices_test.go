package nodecluster

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/ptr"
)

const testGPU = "example.com/gpu"

// gpuPlugin is a device plugin whose devices the test changes.
type gpuPlugin struct {
	pluginapi.UnimplementedDevicePluginServer

	// lists are the lists of devices to report.
	lists chan []*pluginapi.Device
}

func (*gpuPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *gpuPlugin) ListAndWatch(
	_ *pluginapi.Empty, out grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	for {
		select {
		case <-out.Context().Done():
			return nil
		case devices := <-p.lists:
			if err := out.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
		}
	}
}

func (*gpuPlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs: map[string]string{"GPUS": strings.Join(r.GetContainerRequests()[0].GetDevicesIds(), ",")},
	}}}, nil
}

// report reports devices by their IDs and health.
func (p *gpuPlugin) report(health map[string]string) {
	var devices []*pluginapi.Device
	for id, now := range health {
		devices = append(devices, &pluginapi.Device{ID: id, Health: now})
	}
	p.lists <- devices
}

// startPlugin serves a device plugin on the node, and registers it. It is stopped when the test ends or stop is called.
func startPlugin(t *testing.T) (p *gpuPlugin, stop func()) {
	t.Helper()
	dir := filepath.Join(node.Layout.Root(), "device-plugins")
	listener, err := net.Listen("unix", filepath.Join(dir, "gpu.sock"))
	if err != nil {
		t.Fatal(err)
	}
	p = &gpuPlugin{lists: make(chan []*pluginapi.Device, 1)}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() {
		server.Stop()
		serving.Wait()
	})
	t.Cleanup(stop)
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	if _, err := pluginapi.NewRegistrationClient(conn).Register(t.Context(), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, ResourceName: testGPU, Endpoint: "gpu.sock",
	}); err != nil {
		t.Fatal(err)
	}
	return p, stop
}

// awaitGPUs waits for the capacity and the allocatable amount of the Node in the API server.
func awaitGPUs(t *testing.T, admin kubernetes.Interface, capacity, allocatable int64) {
	t.Helper()
	awaitThat(t, fmt.Sprintf("%d of %d devices are allocatable", allocatable, capacity), func() bool {
		now := theNode(t, admin)
		has, usable := now.Status.Capacity[testGPU], now.Status.Allocatable[testGPU]
		return has.Value() == capacity && usable.Value() == allocatable
	})
}

// deviceOf returns the device of a pod and its health, from the pod's status in the API server.
func deviceOf(p corev1.Pod) string {
	for _, c := range p.Status.ContainerStatuses {
		for _, r := range c.AllocatedResourcesStatus {
			for _, d := range r.Resources {
				return string(d.ResourceID) + " " + string(d.Health)
			}
		}
	}
	return ""
}

// TestPodsOfADeploymentHaveDevices: the scheduler assigns pods by the amounts of the Node; their status has the health
// of their devices; when the plugin goes, nothing is allocatable and the pods run on.
func TestPodsOfADeploymentHaveDevices(t *testing.T) {
	const ns, healthy, sick = "devices", pluginapi.Healthy, pluginapi.Unhealthy
	admin := space(t, ns)
	plugin, stop := startPlugin(t)
	plugin.report(map[string]string{"gpu-a": healthy, "gpu-b": healthy})
	awaitGPUs(t, admin, 2, 2)
	labels := map[string]string{"app": "web"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: template(labels, "sleep"),
		},
	}
	deployment.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{testGPU: resource.MustParse("1")}
	if _, err := admin.AppsV1().Deployments(ns).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitReplicas(t, admin, ns, 2)
	devices := func() []string {
		var all []string
		for _, p := range pods(t, admin, ns, "app=web") {
			if p.Spec.NodeName != "" {
				all = append(all, deviceOf(p))
			}
		}
		slices.Sort(all)
		return all
	}
	awaitThat(t, "each pod has a healthy device in its status", func() bool {
		return slices.Equal(devices(), []string{"gpu-a Healthy", "gpu-b Healthy"})
	})
	patch(t, admin, ns, `{"spec":{"replicas":3}}`)
	awaitThat(t, "the third pod is not scheduled", func() bool {
		return slices.ContainsFunc(pods(t, admin, ns, "app=web"), func(p corev1.Pod) bool {
			return p.Spec.NodeName == "" && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && strings.Contains(c.Message, "Insufficient "+testGPU)
			})
		})
	})
	plugin.report(map[string]string{"gpu-a": sick, "gpu-b": healthy, "gpu-c": healthy})
	awaitGPUs(t, admin, 3, 2)
	awaitThat(t, "the status has the device that is broken", func() bool {
		return slices.Contains(devices(), "gpu-a Unhealthy")
	})
	plugin.report(map[string]string{"gpu-a": healthy, "gpu-b": healthy, "gpu-c": healthy})
	awaitGPUs(t, admin, 3, 3)
	awaitReplicas(t, admin, ns, 3)
	awaitThat(t, "the third pod has the new device", func() bool {
		return slices.Equal(devices(), []string{"gpu-a Healthy", "gpu-b Healthy", "gpu-c Healthy"})
	})
	stop()
	awaitGPUs(t, admin, 3, 0)
	for _, p := range pods(t, admin, ns, "app=web") {
		if p.Status.ContainerStatuses[0].RestartCount != 0 || p.Status.Phase != corev1.PodRunning {
			t.Errorf("without the plugin the pod %s has the status %+v", p.Name, p.Status)
		}
	}
}

// TestTheNodeDeclaresItsFeatures: an API server and a scheduler rely on this list.
func TestTheNodeDeclaresItsFeatures(t *testing.T) {
	want := []string{
		"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits",
	}
	now, err := whole.Client(t).CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil || !slices.Equal(now.Status.DeclaredFeatures, want) {
		t.Errorf("the Node declares %q, %v, want %q", now.Status.DeclaredFeatures, err, want)
	}
}
