package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ContainerType is the kind of a container, as the kubelet labels it. A sidecar is an init container.
type ContainerType string

// The types of containers that this version starts.
const (
	// Container is one of spec.containers, InitContainer one of spec.initContainers.
	Container     ContainerType = "container"
	InitContainer ContainerType = "init_container"
	// EphemeralContainer is one that was added to a pod that runs, to look into it.
	EphemeralContainer ContainerType = "ephemeral_container"
)

func (m *Metrics) addRuntime(f factory) {
	m.sandboxDuration = f.histograms(kubelet, "run_podsandbox_duration_seconds",
		"Duration of RunPodSandbox calls, by runtime handler; the empty handler is the runtime's default.", prometheus.DefBuckets, "runtime_handler")
	m.sandboxErrors = f.counters(kubelet, "run_podsandbox_errors_total", "RunPodSandbox calls that failed, by runtime handler.", "runtime_handler")
	m.startedPods = f.counter(kubelet, "started_pods_total", "Sandboxes that were begun to be made for pods, whatever came of it.")
	m.startedPodErrors = f.counter(kubelet, "started_pods_errors_total", "Sandboxes that could not be made.")
	m.userPods = f.counter(kubelet, "started_user_namespaced_pods_total",
		"Pods with a user namespace of their own for which a sandbox was to be made, whatever came of it.")
	m.userPodErrors = f.counter(kubelet, "started_user_namespaced_pods_errors_total", "Those of them that did not start then.")
	m.startedContainers = f.counters(kubelet, "started_containers_total",
		"Containers that were begun to be started, whatever came of it, by type.", "container_type")
	for _, kind := range []ContainerType{Container, InitContainer, EphemeralContainer} {
		m.startedContainers.WithLabelValues(string(kind))
	}
	m.startedContainerErrors = f.counters(kubelet, "started_containers_errors_total",
		"Containers that did not start, by type and by the reason that the status shows.", "container_type", "code")
	m.containerEnds = f.counters(kubelet, "terminated_containers_total",
		"Containers that the status has shown to have ended, by type, exit code and the runtime's reason.", "container_type", "exit_code", "reason")
	m.imagePulls = f.histograms(kubelet, "image_pull_duration_seconds",
		"Duration of image pulls that went well, their turn included, by the size of the image.", imagePullBuckets, "image_size_in_bytes")
	m.imageErrors = f.counter(quartet, "image_pull_errors_total", "Image pulls that failed.")
	m.gateWait = f.histogram(quartet, "start_gate_wait_duration_seconds",
		"How long the making of a sandbox waited for its turn at the start gate, which spaces the starts of many pods.", phaseBuckets)
}

// SandboxBegun notes that a sandbox is about to be made.
func (m *Metrics) SandboxBegun() { m.startedPods.Inc() }

// SandboxFailed notes that a sandbox could not be made.
func (m *Metrics) SandboxFailed() { m.startedPodErrors.Inc() }

// GatePassed notes how long a sandbox had to wait for its turn.
func (m *Metrics) GatePassed(waited time.Duration) { m.gateWait.Observe(seconds(waited)) }

// SandboxCalled notes a call of RunPodSandbox.
func (m *Metrics) SandboxCalled(handler string, took time.Duration, err error) {
	m.sandboxDuration.WithLabelValues(handler).Observe(seconds(took))
	if err != nil {
		m.sandboxErrors.WithLabelValues(handler).Inc()
	}
}

// UserNamespacedPod notes what has come of making the sandbox of a pod with a user namespace, and of starting its first
// containers; nil is a pod that has started.
func (m *Metrics) UserNamespacedPod(err error) {
	m.userPods.Inc()
	if err != nil {
		m.userPodErrors.Inc()
	}
}

// ContainerBegun notes that a container is about to be started.
func (m *Metrics) ContainerBegun(kind ContainerType) {
	m.startedContainers.WithLabelValues(string(kind)).Inc()
}

// ContainerFailed notes why a container did not start.
func (m *Metrics) ContainerFailed(kind ContainerType, code string) {
	m.startedContainerErrors.WithLabelValues(string(kind), code).Inc()
}

// StatusChanged notes the containers that have ended between two statuses of a pod.
func (m *Metrics) StatusChanged(before, after *v1.PodStatus) {
	m.ended(InitContainer, before.InitContainerStatuses, after.InitContainerStatuses)
	m.ended(Container, before.ContainerStatuses, after.ContainerStatuses)
	m.ended(EphemeralContainer, before.EphemeralContainerStatuses, after.EphemeralContainerStatuses)
}

func (m *Metrics) ended(kind ContainerType, before, after []v1.ContainerStatus) {
	known := map[string]bool{}
	for _, c := range before {
		known[c.Name] = c.State.Terminated != nil
	}
	for _, c := range after {
		if end := c.State.Terminated; end != nil && !known[c.Name] {
			m.containerEnds.WithLabelValues(string(kind), strconv.Itoa(int(end.ExitCode)), end.Reason).Inc()
		}
	}
}

// PullBegan notes that an image is about to be pulled for a pod, or waits for its turn.
func (m *Metrics) PullBegan(uid types.UID, now time.Time) { m.pulls.begin(uid, now) }

// PullEnded notes the end of what PullBegan has noted, whatever came of it.
func (m *Metrics) PullEnded(uid types.UID, now time.Time) { m.pulls.end(uid, now) }

// Pulled notes a pull that went well, its wait included. Size is that of the image in bytes, 0 when it is not known.
func (m *Metrics) Pulled(size uint64, took time.Duration) {
	m.imagePulls.WithLabelValues(sizeLabel(size)).Observe(seconds(took))
}

// PullFailed notes a pull that failed.
func (m *Metrics) PullFailed() { m.imageErrors.Inc() }

const (
	mib = 1 << 20
	gib = 1 << 30
)

// sizeLabel puts an image's size into one of the kubelet's classes.
func sizeLabel(size uint64) string {
	classes := []struct {
		above uint64
		label string
	}{
		{100 * gib, "GT100GB"}, {60 * gib, "60GB-100GB"}, {40 * gib, "40GB-60GB"}, {30 * gib, "30GB-40GB"}, {20 * gib, "20GB-30GB"},
		{10 * gib, "10GB-20GB"}, {5 * gib, "5GB-10GB"}, {gib, "1GB-5GB"}, {500 * mib, "500MB-1GB"}, {100 * mib, "100MB-500MB"},
		{10 * mib, "10MB-100MB"}, {0, "0-10MB"},
	}
	for _, class := range classes {
		if size > class.above {
			return class.label
		}
	}
	return "N/A"
}
