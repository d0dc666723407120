// Package podresources serves the kubelet's pod-resources API, version v1, on the kubelet's socket. Programs on this
// machine, such as device monitors, use it to find which pods have devices and CPUs for themselves, and memory of
// NUMA nodes.
package podresources

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/cpuset"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/localapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/allocation"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/claimbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/devices/memory"
)

// Socket returns the path of the socket in a root directory, which is the kubelet's.
func Socket(rootDir string) string { return filepath.Join(rootDir, "pod-resources", "kubelet.sock") }

// Config configures Serve. All fields are required.
type Config struct {
	// Path is the path of the socket, see Socket.
	Path string
	// Pods returns the pods that hold resources of the node. It fails while they are unknown.
	Pods func() ([]*v1.Pod, error)
	// Devices has the devices, the CPUs and the memory of the node.
	Devices Devices
	// Claims returns the resource claims of a container.
	Claims func(pod *v1.Pod, c *v1.Container) []claimbook.Claim
	// Metrics counts requests.
	Metrics *Metrics
	// Logger logs refused users.
	Logger *slog.Logger
	// Clock is the time.
	Clock clock.PassiveClock
}

// Devices has the devices, the CPUs and the memory of the node; *allocator.Allocator implements it.
type Devices interface {
	// Held returns the devices of a container by resource, and Usable the healthy devices of each resource.
	Held(pod types.UID, container string) map[string][]allocation.Device
	Usable() map[string][]allocation.Device
	// CPUs returns the CPUs that a container has for itself, and AllocatableCPUs those that containers can get.
	CPUs(pod types.UID, container string) cpuset.CPUSet
	AllocatableCPUs() cpuset.CPUSet
	// Memory returns what a container has of NUMA nodes, and AllocatableMemory what containers can have of each.
	Memory(pod types.UID, container string) []memory.Block
	AllocatableMemory() []memory.Block
}

// Serve serves requests until ctx ends, and then returns nil. It replaces a stale socket. It fails if it cannot listen.
func Serve(ctx context.Context, cfg Config) error {
	return localapi.Serve(ctx, localapi.Config{
		Path: cfg.Path, Logger: cfg.Logger, Clock: cfg.Clock,
		Register: func(server *grpc.Server) { podresourcesv1.RegisterPodResourcesListerServer(server, lister{cfg: cfg}) },
	})
}

// lister implements the API.
type lister struct {
	podresourcesv1.UnimplementedPodResourcesListerServer

	cfg Config
}

// List implements PodResourcesLister. It returns Unavailable while the pods are unknown.
func (l lister) List(
	context.Context, *podresourcesv1.ListPodResourcesRequest,
) (_ *podresourcesv1.ListPodResourcesResponse, err error) {
	defer func() { l.cfg.Metrics.count(callList, err) }()
	pods, err := l.pods()
	if err != nil {
		return nil, err
	}
	answer := &podresourcesv1.ListPodResourcesResponse{PodResources: make([]*podresourcesv1.PodResources, 0, len(pods))}
	for _, pod := range pods {
		answer.PodResources = append(answer.PodResources, l.resourcesOf(pod))
	}
	return answer, nil
}

// Get implements PodResourcesLister. It returns NotFound for an unknown or ended pod, for which a kubelet returns no
// code, and Unavailable while the pods are unknown.
func (l lister) Get(
	_ context.Context, request *podresourcesv1.GetPodResourcesRequest,
) (_ *podresourcesv1.GetPodResourcesResponse, err error) {
	defer func() { l.cfg.Metrics.count(callGet, err) }()
	pods, err := l.pods()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(pods, func(p *v1.Pod) bool {
		return p.Name == request.GetPodName() && p.Namespace == request.GetPodNamespace()
	})
	if at < 0 {
		return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", request.GetPodName(),
			request.GetPodNamespace())
	}
	return &podresourcesv1.GetPodResourcesResponse{PodResources: l.resourcesOf(pods[at])}, nil
}

// GetAllocatableResources implements PodResourcesLister. It returns the healthy devices, the CPUs and
// the memory, also those in use.
func (l lister) GetAllocatableResources(
	context.Context, *podresourcesv1.AllocatableResourcesRequest,
) (*podresourcesv1.AllocatableResourcesResponse, error) {
	l.cfg.Metrics.count(callGetAllocatable, nil)
	return &podresourcesv1.AllocatableResourcesResponse{
		Devices: devicesOf(l.cfg.Devices.Usable()), CpuIds: numbers(l.cfg.Devices.AllocatableCPUs()),
		Memory: memoryOf(l.cfg.Devices.AllocatableMemory()),
	}, nil
}

func (l lister) pods() ([]*v1.Pod, error) {
	pods, err := l.cfg.Pods()
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return pods, nil
}

// resourcesOf returns the long-running containers of a pod: its sidecars, then its regular containers.
func (l lister) resourcesOf(pod *v1.Pod) *podresourcesv1.PodResources {
	result := &podresourcesv1.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if podset.IsSidecar(c) {
			result.Containers = append(result.Containers, l.containerOf(pod, c))
		}
	}
	for i := range pod.Spec.Containers {
		result.Containers = append(result.Containers, l.containerOf(pod, &pod.Spec.Containers[i]))
	}
	return result
}

func (l lister) containerOf(pod *v1.Pod, c *v1.Container) *podresourcesv1.ContainerResources {
	return &podresourcesv1.ContainerResources{
		Name: c.Name, Devices: devicesOf(l.cfg.Devices.Held(pod.UID, c.Name)),
		CpuIds:           numbers(l.cfg.Devices.CPUs(pod.UID, c.Name)),
		Memory:           memoryOf(l.cfg.Devices.Memory(pod.UID, c.Name)),
		DynamicResources: claimsOf(l.cfg.Claims(pod, c)),
	}
}

// numbers returns the numbers of CPUs, sorted.
func numbers(set cpuset.CPUSet) []int64 {
	var all []int64
	for _, id := range set.List() {
		all = append(all, int64(id))
	}
	return all
}

// memoryOf returns an entry for each block.
func memoryOf(blocks []memory.Block) []*podresourcesv1.ContainerMemory {
	var all []*podresourcesv1.ContainerMemory
	for _, block := range blocks {
		topology := &podresourcesv1.TopologyInfo{}
		for _, id := range block.Nodes.Nodes() {
			topology.Nodes = append(topology.Nodes, &podresourcesv1.NUMANode{ID: int64(id)})
		}
		all = append(all, &podresourcesv1.ContainerMemory{
			MemoryType: string(block.Type), Size: block.Size, Topology: topology,
		})
	}
	return all
}

// claimsOf returns an entry for each claim, with each device of it, sorted by driver.
func claimsOf(claims []claimbook.Claim) []*podresourcesv1.DynamicResource {
	var all []*podresourcesv1.DynamicResource
	for i := range claims {
		resource := &podresourcesv1.DynamicResource{ClaimName: claims[i].Name.Name, ClaimNamespace: claims[i].Name.Namespace}
		for _, driver := range claims[i].DriverNames() {
			for _, d := range claims[i].Drivers[driver].Devices {
				device := &podresourcesv1.ClaimResource{
					DriverName: driver, PoolName: d.Pool, DeviceName: d.Name, ShareId: (*string)(d.ShareID),
				}
				for _, id := range d.CDI {
					device.CdiDevices = append(device.CdiDevices, &podresourcesv1.CDIDevice{Name: id})
				}
				resource.ClaimResources = append(resource.ClaimResources, device)
			}
		}
		all = append(all, resource)
	}
	return all
}

// devicesOf returns an entry for each device and each of its NUMA nodes, as the kubelet does, sorted by resource and
// ID.
func devicesOf(devices map[string][]allocation.Device) []*podresourcesv1.ContainerDevices {
	var all []*podresourcesv1.ContainerDevices
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		for _, d := range devices[name] {
			if len(d.NUMANodes) == 0 {
				all = append(all, &podresourcesv1.ContainerDevices{ResourceName: name, DeviceIds: []string{d.ID}})
			}
			for _, node := range d.NUMANodes {
				all = append(all, &podresourcesv1.ContainerDevices{
					ResourceName: name, DeviceIds: []string{d.ID},
					Topology: &podresourcesv1.TopologyInfo{Nodes: []*podresourcesv1.NUMANode{{ID: node}}},
				})
			}
		}
	}
	return all
}
