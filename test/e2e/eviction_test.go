package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

// evictionConfig leaves 200m of CPU and 256 MiB of memory for pods, whatever the machine has, and evicts when only 100
// MiB of that memory, or 400 MiB of the disk, are available.
const evictionConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
systemReserved: {cpu: %dm, memory: %dMi}
evictionHard: {nodefs.available: 400Mi, memory.available: 100Mi}
evictionPressureTransitionPeriod: %s
volumeStatsAggPeriod: 1s
`

// transition is how long a pressure condition stays true after the pressure was last seen.
const transition = 15 * time.Second

// small is a node with few resources: its state is on a small file system.
type small struct {
	*livenode.Node
	t *testing.T
}

// newSmall starts a small node.
func newSmall(t *testing.T) *small {
	t.Helper()
	own, err := livenode.New(livenode.Bin(), "evict")
	if err != nil {
		t.Fatal(err)
	}
	state := own.Layout.StateDir()
	t.Cleanup(func() {
		if err := os.Remove(state); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=1g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, 0); err != nil && !errors.Is(err, unix.EINVAL) { // "down" has unmounted it already
			t.Error(err)
		}
	})
	var machine v1.Node
	if err := json.Unmarshal([]byte(quartet(t, "get", "node", "-o", "json")), &machine); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(state, "begin.yaml")
	text := fmt.Sprintf(evictionConfig, machine.Status.Capacity.Cpu().MilliValue()-200,
		machine.Status.Capacity.Memory().Value()>>20-256, transition)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	own.Flags = []string{"--config", config}
	t.Cleanup(func() {
		if _, err := own.Command(context.WithoutCancel(t.Context()), "down"); err != nil {
			t.Error(err)
		}
	})
	if err := own.Up(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := own.Import(t.Context(), filepath.Join(livenode.Bin(), "images", "hello.tar")); err != nil {
		t.Fatal(err)
	}
	return &small{own, t}
}

// apply places a pod with a volume on the disk; more has fields of its spec, resources those of its container, args its
// arguments.
func (s *small) apply(name, more, resources, args string) {
	s.t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: evict}\nspec:\n  terminationGracePeriodSeconds: 1\n%s  containers:\n"+
		"  - {name: main, image: %q, args: [%s], resources: %s, volumeMounts: [{name: data, mountPath: /data}]}\n  volumes: [{name: data, emptyDir: {}}]\n",
		name, more, image, args, resources)
	if err := s.Place(name+".yaml", text); err != nil {
		s.t.Fatal(err)
	}
}

// find returns a pod as it is now; nil when it does not exist, or the node does not answer.
func (s *small) find(name string) *v1.Pod {
	pods, err := s.Pods(s.t.Context())
	if err != nil {
		return nil
	}
	for i := range pods {
		if strings.HasPrefix(pods[i].Name, name+"-") {
			return &pods[i]
		}
	}
	return nil
}

// awaitReady waits for pods.
func (s *small) awaitReady(names ...string) {
	s.t.Helper()
	for _, name := range names {
		awaitThat(s.t, name+" to be Ready", func() bool { return ready(s.find(name)) })
	}
}

// awaitFailed waits until a pod is evicted or preempted, and returns it.
func (s *small) awaitFailed(name string) *v1.Pod {
	s.t.Helper()
	awaitThat(s.t, name+" to be ended", func() bool { p := s.find(name); return p != nil && p.Status.Phase == v1.PodFailed })
	p := s.find(name)
	for _, c := range p.Status.Conditions {
		if c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "TerminationByKubelet" {
			return p
		}
	}
	s.t.Errorf("the conditions of %s are %+v", name, p.Status.Conditions)
	return p
}

// condition returns a condition of the Node.
func (s *small) condition(kind v1.NodeConditionType) v1.NodeCondition {
	out, err := s.Command(s.t.Context(), "get", "node", "-o", "json")
	var shown v1.Node
	if err != nil || json.Unmarshal([]byte(out), &shown) != nil {
		return v1.NodeCondition{}
	}
	for _, c := range shown.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.NodeCondition{}
}

// awaitCondition waits until a condition of the Node has a status, and returns its transition time.
func (s *small) awaitCondition(kind v1.NodeConditionType, status v1.ConditionStatus) time.Time {
	s.t.Helper()
	var seen v1.NodeCondition
	awaitThat(s.t, fmt.Sprintf("%s to be %s", kind, status), func() bool {
		seen = s.condition(kind)
		return seen.Status == status
	})
	return seen.LastTransitionTime.Time
}

// TestPodsAreEndedToMakeRoom uses a node with few resources: pods are preempted for a critical one, and evicted when
// the disk or the memory runs short. The pod with the highest usage is evicted, a pod within its requests stays, and
// the Node reports the pressure until the transition period has passed.
func TestPodsAreEndedToMakeRoom(t *testing.T) {
	own := newSmall(t)
	own.apply("modest", "", `{requests: {cpu: 10m, memory: 16Mi, ephemeral-storage: 8Mi}, limits: {cpu: 10m, memory: 16Mi, ephemeral-storage: 8Mi}}`, "sleep")
	own.apply("lesser", "  priority: 1\n", "{requests: {cpu: 150m}}", "sleep")
	own.awaitReady("modest", "lesser")

	own.apply("vital", "  priority: 2000000000\n", "{requests: {cpu: 150m}}", "sleep")
	lesser := own.awaitFailed("lesser")
	if lesser.Status.Reason != "Preempting" || lesser.Status.Message != "Preempted in order to admit critical pod" {
		t.Errorf("lesser.Status.Reason = %s: %s, want %q and %q",
			lesser.Status.Reason, lesser.Status.Message, "Preempting", "Preempted in order to admit critical pod")
	}
	own.awaitReady("vital")

	own.apply("greedy", "", "{}", "sleep")
	own.awaitReady("greedy")
	own.awaitCondition(v1.NodeDiskPressure, v1.ConditionFalse)
	own.awaitCondition(v1.NodeMemoryPressure, v1.ConditionFalse)
	greedy := own.find("greedy")
	full := filepath.Join(own.PodDir(greedy), "volumes", "kubernetes.io~empty-dir", "data", "full")
	fill(t, full, 600<<20)
	diskSince := own.awaitCondition(v1.NodeDiskPressure, v1.ConditionTrue)
	greedy = own.awaitFailed("greedy")
	if greedy.Status.Reason != "Evicted" || !strings.HasPrefix(greedy.Status.Message, "The node was low on resource: ephemeral-storage. Threshold quantity: 400Mi, available: ") {
		t.Errorf("it is %s: %s, want %q and beginning with %q",
			greedy.Status.Reason, greedy.Status.Message, "Evicted",
			"The node was low on resource: ephemeral-storage. Threshold quantity: 400Mi, available: ")
	}
	awaitThat(t, "its volume to be gone", func() bool { _, err := os.Stat(full); return os.IsNotExist(err) })

	if events, err := own.Command(t.Context(), "events"); err != nil || !strings.Contains(events, "Evicted") || !strings.Contains(events, "Preempting") {
		t.Errorf("the events are %s, %v, want text with %q and with %q", events, err, "Evicted", "Preempting")
	}
	// Its layer and its log are removed, too. The exit of its container stays in its status, also after a restart.
	// the sandbox remains
	awaitThat(t, "its container to be removed", func() bool { return own.containersOf(greedy) == 1 })
	logs, err := filepath.Glob(filepath.Join(own.Layout.PodLogs(), "*_"+string(greedy.UID), "main", "*"))
	if err != nil || len(logs) != 0 {
		t.Errorf("there are the logs %v, %v, want none", logs, err)
	}
	pid, err := own.PID("syncloop")
	if err == nil {
		err = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "syncloop to be back", func() bool { now, err := own.PID("syncloop"); return err == nil && now != pid })
	own.awaitReady("modest", "vital")
	after := own.awaitFailed("greedy")
	if ended := after.Status.ContainerStatuses; len(ended) != 1 || ended[0].State.Terminated == nil ||
		ended[0].ContainerID == "" ||
		ended[0].ContainerID != greedy.Status.ContainerStatuses[0].ContainerID || after.Status.Reason != "Evicted" {
		t.Errorf("after a restart it is %s: %+v", after.Status.Reason, ended)
	}

	own.apply("hungry", "", "{}", `grow, "-mib", "180"`)
	memorySince := own.awaitCondition(v1.NodeMemoryPressure, v1.ConditionTrue)
	hungry := own.awaitFailed("hungry")
	if s := hungry.Status; s.Reason != "Evicted" || !strings.HasPrefix(s.Message, "The node was low on resource: memory. Threshold quantity: 100Mi, available: ") ||
		!strings.Contains(s.Message, "Container main was using ") || !strings.HasSuffix(s.Message, ", request is 0, has larger consumption of memory. ") {
		t.Errorf("it is %s: %s, want %q, beginning with %q, with %q and ending with %q",
			s.Reason, s.Message, "Evicted", "The node was low on resource: memory. Threshold quantity: 100Mi, available: ",
			"Container main was using ", ", request is 0, has larger consumption of memory. ")
	}

	for kind, since := range map[v1.NodeConditionType]time.Time{v1.NodeDiskPressure: diskSince,
		v1.NodeMemoryPressure: memorySince} {
		// conditions have whole seconds
		if over := own.awaitCondition(kind, v1.ConditionFalse); over.Sub(since) < transition-time.Second {
			t.Errorf("the Node has said %s for only %s", kind, over.Sub(since))
		}
	}
	for _, name := range []string{"modest", "vital"} {
		if p := own.find(name); !ready(p) || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: %s, want it ready and never restarted", name, describe(p))
		}
	}
}

// TestAHardEvictionNeedsNoPLEG has the disk run short while pleg is stopped, and the supervisor, too, which would
// replace it.
func TestAHardEvictionNeedsNoPLEG(t *testing.T) {
	own := newSmall(t)
	own.apply("greedy", "", "{}", "sleep")
	own.awaitReady("greedy")
	own.awaitCondition(v1.NodeDiskPressure, v1.ConditionFalse)
	for _, name := range []string{"quartet", "pleg"} {
		id, err := own.PID(name)
		if err == nil {
			err = unix.Kill(id, unix.SIGSTOP)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if !isStopped(t, id) {
				t.Errorf("%s is not stopped any more", name)
			}
			if err := unix.Kill(id, unix.SIGCONT); err != nil {
				t.Error(err)
			}
		}()
		awaitThat(t, name+" is stopped", func() bool { return isStopped(t, id) })
	}
	fill(t, filepath.Join(own.PodDir(own.find("greedy")), "volumes", "kubernetes.io~empty-dir", "data", "full"), 600<<20)
	if reason := own.awaitFailed("greedy").Status.Reason; reason != "Evicted" {
		t.Errorf("it is %s, want Evicted", reason)
	}
	awaitThat(t, "its container to end", func() bool { return evicted(own.find("greedy")) })
}

// fill creates a file of a size.
func fill(t *testing.T, path string, size int64) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, size), file.Close()); err != nil {
		t.Fatal(err)
	}
}

// containersOf returns the number of a pod's containers in the runtime, including its sandbox; -1 when the runtime does
// not answer.
func (s *small) containersOf(pod *v1.Pod) int {
	cmd := exec.CommandContext(s.t.Context(), filepath.Join(s.Layout.Runtime(), "bin", "ctr"), "--address", s.Layout.RuntimeSocket(), "--namespace", "k8s.io",
		"containers", "ls", "--quiet", fmt.Sprintf("labels.%q==%s", "io.kubernetes.pod.uid", pod.UID))
	out, err := cmd.Output()
	if err != nil {
		return -1
	}
	return len(strings.Fields(string(out)))
}
