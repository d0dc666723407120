package containerspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// Inputs holds the inputs to one container's configuration, in addition to its pod and node.
type Inputs struct {
	// Restart is the restart count and back-off of the container.
	Restart podlabels.Restart
	// ImageRef is the image in the runtime's form; ImageUser is the image's default user.
	ImageRef  string
	ImageUser ImageUser
	// PodIPs are the pod's addresses.
	PodIPs []string
	// File reads a file of one of the pod's volumes for a value in the environment; nil without volumes. Its error is
	// fs.ErrNotExist for a missing file.
	File func(volume, path string) (string, error)
	// ConfigMap and Secret return an object of the pod's namespace for the environment, and fail as a configobjects.Getter
	// does. Required for a container that refers to one.
	ConfigMap func(name string) (*v1.ConfigMap, error)
	Secret    func(name string) (*v1.Secret, error)
	// Services are the service environment variables. The container's own environment takes precedence.
	Services []v1.EnvVar
	// Mounts are the prepared mounts. Container maps their files to the pod's IDs.
	Mounts []*runtimeapi.Mount
	// Devices are the block devices of the container.
	Devices []*runtimeapi.Device
	// Given is what the container gets for its devices of device plugins.
	Given Given
	// IDs are the IDs of the pod's user namespace.
	IDs IDs
	// Groups are the supplemental groups of the pod's volumes.
	Groups []int64
	// Target is the runtime's ID of the container whose process namespace this one shares, unless the whole pod shares
	// one; it may be empty.
	Target string
	// Traceparent is the annotation of the container; it may be empty.
	Traceparent string
}

// LogPath returns the path of a container's log, relative to the pod's log directory.
func LogPath(container string, restartCount int) string {
	return fmt.Sprintf("%s/%d.log", container, restartCount)
}

// Container returns the configuration of a container. Its errors name the field.
func Container(pod *v1.Pod, c *v1.Container, node Node, in Inputs) (*runtimeapi.ContainerConfig, error) {
	env, err := makeEnvironment(pod, c, in, node)
	if err != nil {
		return nil, err
	}
	labels, annotations, err := podlabels.Container(pod, c, in.Restart, in.Traceparent)
	if err != nil {
		return nil, err
	}
	security, err := containerSecurity(pod, c, in, node)
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", c.Name, err)
	}
	maps.Copy(annotations, in.Given.Annotations)
	mounts := append(slices.Clone(in.Given.Mounts), in.Mounts...)
	for _, mount := range mounts {
		mount.UidMappings, mount.GidMappings = in.IDs.mappings(), in.IDs.mappings()
	}
	if pid := security.NamespaceOptions; in.Target != "" && pid.Pid == runtimeapi.NamespaceMode_CONTAINER {
		pid.Pid, pid.TargetId = runtimeapi.NamespaceMode_TARGET, in.Target
	}
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: in.Restart.Attempt()},
		Image:       &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: c.Image},
		Command:     env.expand(c.Command),
		Args:        env.expand(c.Args),
		WorkingDir:  c.WorkingDir,
		Envs:        env.keyValues(),
		Mounts:      mounts,
		Devices:     append(slices.Clone(in.Given.Devices), in.Devices...),
		CDIDevices:  in.Given.CDIDevices,
		Labels:      labels,
		Annotations: annotations,
		LogPath:     LogPath(c.Name, in.Restart.Count),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       Resources(pod, c, node),
			SecurityContext: security,
		},
	}
	config.Linux.Resources.CpusetCpus, config.Linux.Resources.CpusetMems = in.Given.CPUs, in.Given.MemoryNodes
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		signal, ok := runtimeapi.Signal_value[signalName(*c.Lifecycle.StopSignal)]
		if !ok {
			return nil, fmt.Errorf("container %q: lifecycle.stopSignal: the runtime knows no signal %q", c.Name, *c.Lifecycle.StopSignal)
		}
		config.StopSignal = runtimeapi.Signal(signal)
	}
	return config, nil
}

// signalName returns the CRI's name of a signal: SIGRTMIN+1 is SIGNAL_SIGRTMINPLUS1.
func signalName(signal v1.Signal) string {
	return "SIGNAL_" + strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(signal))
}
