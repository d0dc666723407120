package fakecri

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"
)

// sigkill and sigterm are the exit codes of a container that a signal ended, as containerd reports them.
const (
	sigkill = 128 + 9
	sigterm = 128 + 15
)

// sandbox is a pod sandbox.
type sandbox struct {
	id        string
	config    *runtimeapi.PodSandboxConfig
	handler   string
	state     runtimeapi.PodSandboxState
	createdAt int64
	ip        string
}

// container is a container in a sandbox.
type container struct {
	id         string
	sandboxID  string
	config     *runtimeapi.ContainerConfig
	imageRef   string
	state      runtimeapi.ContainerState
	createdAt  int64
	startedAt  int64
	finishedAt int64
	exitCode   int32
	reason     string
	logPath    string
	// resources are those of its creation or of the last update; memory is the number of bytes that it uses.
	resources *runtimeapi.LinuxContainerResources
	memory    uint64
	// ended is closed when the container exits.
	ended chan struct{}
}

// Container is a container as a test sees it.
type Container struct {
	// ID and SandboxID are the runtime's.
	ID, SandboxID string
	// Name is the name in the pod's spec, PodUID the pod's.
	Name, PodUID string
	// State is its state.
	State runtimeapi.ContainerState
	// ExitCode is set when the container has ended.
	ExitCode int32
	// Config is the configuration of its creation. It is shared: do not change it.
	Config *runtimeapi.ContainerConfig
	// Resources are its current resources. They are shared, too.
	Resources *runtimeapi.LinuxContainerResources
}

// Pod describes a pod for RunPod.
type Pod struct {
	// UID, Name and Namespace identify it; Name and Namespace are optional.
	UID, Name, Namespace string
	// Containers are the names of its containers, all of which run.
	Containers []string
	// Annotations are set on the sandbox and on each container.
	Annotations map[string]string
	// HostNetwork is for a pod without an address of its own.
	HostNetwork bool
	// Attempt is the number of earlier sandboxes of the pod.
	Attempt uint32
}

// RunPod adds a ready sandbox with running containers to the runtime, without CRI calls but with the events of such
// calls. It returns the ids; those of containers by name.
func (s *Server) RunPod(pod Pod) (sandboxID string, containers map[string]string) {
	if pod.Name == "" {
		pod.Name = "pod-" + pod.UID
	}
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	labels := map[string]string{
		types.KubernetesPodNameLabel: pod.Name, types.KubernetesPodNamespaceLabel: pod.Namespace,
		types.KubernetesPodUIDLabel: pod.UID,
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: pod.UID,
			Attempt: pod.Attempt},
		Labels: labels, Annotations: pod.Annotations,
	}
	if pod.HostNetwork {
		config.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.addSandbox(config, "")
	containers = map[string]string{}
	for _, name := range pod.Containers {
		containers[name] = s.addRunning(sb, name, 0)
	}
	return sb.id, containers
}

// AddContainer adds another running container to a sandbox, as a restart does, and returns its id. It panics when the
// sandbox does not exist.
func (s *Server) AddContainer(sandboxID, name string, attempt uint32) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addRunning(s.mustSandbox(sandboxID), name, attempt)
}

func (s *Server) addRunning(sb *sandbox, name string, attempt uint32) string {
	labels := maps.Clone(sb.config.Labels)
	labels[types.KubernetesContainerNameLabel] = name
	c := s.addContainer(sb, &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
		Image:    &runtimeapi.ImageSpec{Image: "test/" + name}, Labels: labels, Annotations: maps.Clone(sb.config.Annotations),
	}, "sha256:"+name)
	s.start(c)
	return c.id
}

// Exit ends a running container. It panics when the container does not exist.
func (s *Server) Exit(containerID string, code int32) { s.ExitWithReason(containerID, code, "") }

// Kill ends a running container as SIGKILL does.
func (s *Server) Kill(containerID string) { s.Exit(containerID, sigkill) }

// ExitWithReason ends a running container with the runtime's reason, for example "OOMKilled"; an empty one is replaced
// by "Completed" or "Error", depending on the code.
func (s *Server) ExitWithReason(containerID string, code int32, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.exit(s.mustContainer(containerID), code, reason)
}

// KillSandbox makes a sandbox not ready, ends its containers and removes its address, as the end of its pause process
// does.
func (s *Server) KillSandbox(sandboxID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopSandbox(s.mustSandbox(sandboxID))
}

// DropContainer removes a container from the runtime, as the RPC does.
func (s *Server) DropContainer(containerID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropContainer(s.mustContainer(containerID))
}

// DropSandbox removes a sandbox and its containers from the runtime.
func (s *Server) DropSandbox(sandboxID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropSandbox(s.mustSandbox(sandboxID))
}

// MarkUnknown makes a container's state unknown, as containerd does when it has lost the shim.
func (s *Server) MarkUnknown(containerID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mustContainer(containerID).state = runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// Containers returns all containers, in the order of their creation.
func (s *Server) Containers() []Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Container, 0, len(s.containers))
	for _, id := range inOrder(s.containers) {
		all = append(all, s.view(s.containers[id]))
	}
	return all
}

// Sandboxes returns the ids of all sandboxes, in the order of their creation.
func (s *Server) Sandboxes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return inOrder(s.sandboxes)
}

// SandboxConfig returns the configuration with which a sandbox was created, and its runtime handler.
func (s *Server) SandboxConfig(id string) (config *runtimeapi.PodSandboxConfig, handler string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.mustSandbox(id)
	return sb.config, sb.handler
}

func (s *Server) view(c *container) Container {
	view := Container{ID: c.id, SandboxID: c.sandboxID, Name: c.config.GetMetadata().GetName(), State: c.state,
		ExitCode: c.exitCode, Config: c.config, Resources: c.resources}
	if sb, ok := s.sandboxes[c.sandboxID]; ok {
		view.PodUID = sb.config.GetMetadata().GetUid()
	}
	return view
}

func (s *Server) mustSandbox(id string) *sandbox {
	sb, ok := s.sandboxes[id]
	if !ok {
		panic(fmt.Sprintf("the test names a sandbox %q that the fake runtime does not have", id))
	}
	return sb
}

func (s *Server) mustContainer(id string) *container {
	c, ok := s.containers[id]
	if !ok {
		panic(fmt.Sprintf("the test names a container %q that the fake runtime does not have", id))
	}
	return c
}

// The following methods change the state and emit the events of the change; they are called with mu held.

func (s *Server) addSandbox(config *runtimeapi.PodSandboxConfig, handler string) *sandbox {
	sb := &sandbox{id: s.nextID("sandbox"), config: config, handler: handler, state: runtimeapi.PodSandboxState_SANDBOX_READY, createdAt: s.now()}
	if config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		sb.ip = fmt.Sprintf("10.88.%d.%d", s.serial/250, s.serial%250+2)
	}
	s.sandboxes[sb.id] = sb
	s.emit(sb.id, sb, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.emit(sb.id, sb, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return sb
}

func (s *Server) addContainer(sb *sandbox, config *runtimeapi.ContainerConfig, imageRef string) *container {
	c := &container{id: s.nextID("container"), sandboxID: sb.id, config: config, imageRef: imageRef, resources: config.GetLinux().GetResources(),
		state: runtimeapi.ContainerState_CONTAINER_CREATED, createdAt: s.now(), ended: make(chan struct{})}
	if config.GetLogPath() != "" {
		c.logPath = sb.config.GetLogDirectory() + "/" + config.GetLogPath()
	}
	s.containers[c.id] = c
	s.emit(c.id, sb, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return c
}

func (s *Server) start(c *container) {
	c.state, c.startedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, s.now()
	s.emit(c.id, s.sandboxes[c.sandboxID], runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	if s.onStart != nil {
		if code, exits := s.onStart(s.view(c)); exits {
			s.exit(c, code, "")
		}
	}
}

func (s *Server) exit(c *container, code int32, reason string) {
	if c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		return
	}
	switch {
	case reason != "":
	case code == 0:
		reason = "Completed"
	default:
		reason = "Error"
	}
	c.state, c.finishedAt, c.exitCode, c.reason = runtimeapi.ContainerState_CONTAINER_EXITED, s.now(), code, reason
	close(c.ended)
	s.emit(c.id, s.sandboxes[c.sandboxID], runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func (s *Server) stopSandbox(sb *sandbox) {
	for _, c := range s.containersOf(sb.id) {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			s.exit(c, sigkill, "")
		}
	}
	if sb.state == runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		return
	}
	sb.state = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	s.emit(sb.id, sb, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

func (s *Server) dropContainer(c *container) {
	if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
		s.exit(c, sigkill, "")
	}
	delete(s.containers, c.id)
	s.emit(c.id, s.sandboxes[c.sandboxID], runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
}

func (s *Server) dropSandbox(sb *sandbox) {
	s.stopSandbox(sb)
	for _, c := range s.containersOf(sb.id) {
		s.dropContainer(c)
	}
	delete(s.sandboxes, sb.id)
	s.emit(sb.id, nil, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
}

func (s *Server) containersOf(sandboxID string) []*container {
	var containers []*container
	for _, c := range s.containers {
		if c.sandboxID == sandboxID {
			containers = append(containers, c)
		}
	}
	slices.SortFunc(containers, func(a, b *container) int { return compareIDs(a.id, b.id) })
	return containers
}

// inOrder returns ids in the order in which they were assigned.
func inOrder[V any](all map[string]V) []string {
	return slices.SortedFunc(maps.Keys(all), compareIDs)
}

func compareIDs(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }
