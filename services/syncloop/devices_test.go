package syncloop

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const testDevice = "example.com/gpu"

// gpuPlugin is a device plugin with the devices a and b that serves its registration and its devices on one socket.
type gpuPlugin struct {
	registrationv1.UnimplementedRegistrationServer
	pluginapi.UnimplementedDevicePluginServer

	info registrationv1.PluginInfo
	// refused has the errors that the node has notified.
	refused chan string
}

func (p *gpuPlugin) GetInfo(context.Context, *registrationv1.InfoRequest) (*registrationv1.PluginInfo, error) {
	return &registrationv1.PluginInfo{
		Type: p.info.GetType(), Name: p.info.GetName(), SupportedVersions: p.info.GetSupportedVersions(),
	}, nil
}

func (p *gpuPlugin) NotifyRegistrationStatus(
	_ context.Context, s *registrationv1.RegistrationStatus,
) (*registrationv1.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		select {
		case p.refused <- s.GetError():
		default: // it is told again after each try
		}
	}
	return &registrationv1.RegistrationStatusResponse{}, nil
}

func (*gpuPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (*gpuPlugin) ListAndWatch(
	_ *pluginapi.Empty, out grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	if err := out.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{
		{ID: "a", Health: pluginapi.Healthy}, {ID: "b", Health: pluginapi.Healthy},
	}}); err != nil {
		return err
	}
	<-out.Context().Done()
	return nil
}

func (*gpuPlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs: map[string]string{"GPUS": strings.Join(r.GetContainerRequests()[0].GetDevicesIds(), ",")},
	}}}, nil
}

// plug serves a plugin with a socket in the folder of the plugin manager.
func (m *machine) plug(file string, info *registrationv1.PluginInfo) (p *gpuPlugin, stop func()) {
	m.t.Helper()
	p = &gpuPlugin{refused: make(chan string, 1)}
	p.info.Type, p.info.Name, p.info.SupportedVersions = info.GetType(), info.GetName(), info.GetSupportedVersions()
	return p, serveOn(m.t, filepath.Join(m.cfg.RootDir, "plugins_registry", file), func(s *grpc.Server) {
		registrationv1.RegisterRegistrationServer(s, p)
		pluginapi.RegisterDevicePluginServer(s, p)
	})
}

// TestADevicePluginOfThePluginManager checks that a plugin with a socket in plugins_registry is registered by each
// syncloop, that a pod gets its device, and that the pod keeps it when the plugin goes.
func TestADevicePluginOfThePluginManager(t *testing.T) {
	m := newMachine(t)
	_, withdraw := m.plug("gpu.sock", &registrationv1.PluginInfo{
		Type: registrationv1.DevicePlugin, Name: testDevice, SupportedVersions: []string{"v1", pluginapi.Version},
	})
	m.configmux.speak()
	stop := m.start()
	told := m.storage()
	amounts := func(capacity, allocatable int64) func() bool {
		return func() bool {
			d := told()["device/"+testDevice].GetDeviceResource()
			return d.GetName() == testDevice && d.GetCapacity() == capacity && d.GetAllocatable() == allocatable
		}
	}
	m.eventually("the devices are told", amounts(2, 2))
	web := newPod("u1", "web", "main")
	web.Spec.Containers[0].Resources.Limits = v1.ResourceList{testDevice: resource.MustParse("1")}
	m.put(web)
	m.eventually("the pod is ready", m.ready("u1"))
	running := m.containers()
	stop()
	m.start()
	told = m.storage() // without what the first process has told
	m.eventually("the plugin is registered again", amounts(2, 2))
	withdraw()
	m.eventually("nothing is allocatable", amounts(2, 0))
	m.eventually("the pod is ready", m.ready("u1"))
	if got := m.containers(); len(got) != 1 || got[0] != running[0] {
		t.Errorf("the containers are %v, want %v", got, running)
	}
	status := m.pod("u1").Status.ContainerStatuses[0].AllocatedResourcesStatus
	if len(status) != 1 || len(status[0].Resources) != 1 || status[0].Resources[0].ResourceID != "a" {
		t.Errorf("the resources in the pod's status are %v, want the device a", status)
	}
}

// TestPluginsThatAreRefused checks what the plugin manager tells plugins that cannot be registered, in the kubelet's
// words.
func TestPluginsThatAreRefused(t *testing.T) {
	m := newMachine(t)
	m.configmux.speak()
	m.start()
	versions := []string{pluginapi.Version}
	for want, info := range map[string]*registrationv1.PluginInfo{
		"manager version, v1beta1, is not among plugin supported versions [v2]": {
			Type: registrationv1.DevicePlugin, Name: testDevice, SupportedVersions: []string{"v2"},
		},
		`invalid name of device plugin socket: the ResourceName "gpu" is invalid`: {
			Type: registrationv1.DevicePlugin, Name: "gpu", SupportedVersions: versions,
		},
		"no handler registered for plugin type: OtherPlugin": {Type: "OtherPlugin", Name: testDevice, SupportedVersions: versions},
	} {
		p, stop := m.plug("refused.sock", info)
		if got := <-p.refused; !strings.Contains(got, want) {
			t.Errorf("the plugin is told %q, want %q", got, want)
		}
		stop()
	}
}
