package syncloop

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// volumeDir returns the directory of a pod's emptyDir.
func (m *machine) volumeDir(uid types.UID, name string) string {
	return filepath.Join(m.cfg.RootDir, "pods", string(uid), "volumes", "kubernetes.io~empty-dir", name)
}

// pod returns a pod from /pods, or nil if it is missing.
func (m *machine) pod(uid types.UID) *v1.Pod {
	for _, pod := range m.pods() {
		if pod.UID == uid {
			return &pod
		}
	}
	return nil
}

func withVolume(pod *v1.Pod, name string, source v1.VolumeSource) *v1.Pod {
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	return pod
}

func TestAPodWaitsForItsVolumesAndSaysForWhich(t *testing.T) {
	m := newMachine(t)
	host := filepath.Join(t.TempDir(), "not-there-yet")
	directory := v1.HostPathDirectory
	m.put(withVolume(newPod("u1", "web", "a"), "host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host, Type: &directory}}))
	m.put(withVolume(newPod("u2", "other", "a"), "data", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
	m.put(withVolume(newPod("u3", "far", "a"), "disk", v1.VolumeSource{FC: &v1.FCVolumeSource{}}))
	m.configmux.speak()
	m.start()
	m.eventually("the other one is ready", m.ready("u2"))
	m.eventually("web's status names the missing volume", func() bool {
		pod := m.pod("u1")
		return pod != nil && pod.Status.Phase == v1.PodPending && pod.Status.Reason == "FailedMount" &&
			strings.HasPrefix(pod.Status.Message, `MountVolume.SetUp failed for volume "host" : hostPath type check failed: stat `+host) &&
			len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Waiting.Reason == "ContainerCreating"
	})
	m.eventually("far is not supported", func() bool {
		pod := m.pod("u3")
		return pod != nil && pod.Status.Phase == v1.PodPending && pod.Status.Reason == "UnsupportedPodSpec" &&
			strings.HasPrefix(pod.Status.Message, `volume "disk" of kind fc: it is not supported yet`)
	})
	const operations, volumes = "storage_operation_duration_seconds migrated=false operation_name=volume_mount ", "volume_manager_total_volumes plugin_name=kubernetes.io/"
	m.eventually("the failures are counted", func() bool {
		got := m.metrics()
		return got[operations+"status=fail-unknown volume_plugin=kubernetes.io/host-path"] > 0 && got["quartet_pod_worker_retries_total reason=volume"] > 0
	})
	m.wantMetrics("web waits", map[string]float64{
		operations + "status=success volume_plugin=kubernetes.io/empty-dir": 1, "quartet_pod_start_phase_duration_seconds phase=volumes": 1,
		volumes + "empty-dir state=desired_state_of_world": 1, volumes + "empty-dir state=actual_state_of_world": 1, volumes + "host-path state=desired_state_of_world": 1,
	})
	if err := os.Mkdir(host, 0o750); err != nil {
		t.Fatal(err)
	}
	m.eventually("web is ready, and its status has no message", func() bool {
		return m.ready("u1", "u2")() && m.pod("u1").Status.Message == ""
	})
	for _, uid := range []string{"u1", "u2", "u3"} {
		m.configmux.level.Delete(uid)
	}
	m.eventually("nothing is left", func() bool {
		left, err := os.ReadDir(filepath.Join(m.cfg.RootDir, "pods"))
		return err == nil && len(left) == 0 && len(m.pods()) == 0
	})
}

// TestAPodThatWaitsForAVolumeEndsAtOnce checks that the end of a pod does not wait for a volume that cannot be set up.
func TestAPodThatWaitsForAVolumeEndsAtOnce(t *testing.T) {
	m := newMachine(t)
	directory := v1.HostPathDirectory
	m.put(withVolume(newPod("u1", "web", "a"), "host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/not/there", Type: &directory}}))
	m.configmux.speak()
	m.start()
	m.eventually("web waits", func() bool { pod := m.pod("u1"); return pod != nil && pod.Status.Reason == "FailedMount" })
	begun := time.Now()
	m.configmux.level.Delete("u1")
	m.eventually("it is gone", func() bool { return len(m.pods()) == 0 })
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestAPodWhoseVolumeBecomesTooLargeIsEvicted(t *testing.T) {
	m := newMachine(t)
	m.cfg.Kubelet.VolumeStatsAggPeriod.Duration = 20 * time.Millisecond
	m.put(withVolume(newPod("u1", "web", "a"), "data", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))}}))
	m.put(withVolume(newPod("u2", "other", "a"), "data", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("4Mi"))}}))
	m.configmux.speak()
	m.start()
	m.eventually("both are ready", m.ready("u1", "u2"))
	for _, uid := range []types.UID{"u1", "u2"} {
		if err := os.WriteFile(filepath.Join(m.volumeDir(uid, "data"), "large"), make([]byte, 2<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.eventually("web is evicted", func() bool {
		pod := m.pod("u1")
		return pod.Status.Phase == v1.PodFailed && pod.Status.Reason == "Evicted" && pod.Status.Message == `Usage of EmptyDir volume "data" exceeds the limit "1Mi". `
	})
	m.eventually("its volume is gone, and the pod is still listed", func() bool {
		_, err := os.Stat(m.volumeDir("u1", "data"))
		return os.IsNotExist(err) && m.pod("u1") != nil
	})
	if !m.ready("u2")() {
		t.Error("the other pod is not ready any more")
	}
}

// warnings are the reasons of the node's events.
type warnings []string

func (w *warnings) NodeWarning(_ context.Context, reason, _ string) { *w = append(*w, reason) }

// TestTheSwapWarningIsGivenOnce checks that the event is recorded once, and only if there is swap space.
func TestTheSwapWarningIsGivenOnce(t *testing.T) {
	proc := t.TempDir()
	var events warnings
	warn := swapWarning(proc, &events)
	const header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	for _, step := range []struct {
		swaps string
		want  int
	}{
		{"", 0},
		{header, 0},
		{header + "/dev/sda2                               partition\t8388604\t\t0\t\t-2\n", 1},
		{header + "/swapfile file 1 0 -2\n", 1},
	} {
		if err := os.WriteFile(filepath.Join(proc, "swaps"), []byte(step.swaps), 0o600); err != nil {
			t.Fatal(err)
		}
		if warn(); len(events) != step.want || step.want > 0 && events[0] != "PossibleMemoryBackedVolumesOnDisk" {
			t.Errorf("with %q: %q", step.swaps, events)
		}
	}
}
