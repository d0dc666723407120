package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

// evictionConfig evicts for the disk alone: what is left of the machine's memory is not the test's.
const evictionConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard: {nodefs.available: 400Mi}
evictionPressureTransitionPeriod: 20s
volumeStatsAggPeriod: 1s
`

// TestThePodThatFillsTheDiskIsEvicted on a node of its own, all of which is on a small file system: the pod whose volume fills
// it goes, the one that asks for what it uses stays, and the Node says that the disk is short until it has not been for a while.
func TestThePodThatFillsTheDiskIsEvicted(t *testing.T) {
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
	config := filepath.Join(state, "begin.yaml")
	if err := os.WriteFile(config, []byte(evictionConfig), 0o600); err != nil {
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
	apply := func(name, resources string) {
		text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: evict}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n"+
			"  - {name: main, image: %q, args: [sleep], resources: %s, volumeMounts: [{name: data, mountPath: /data}]}\n  volumes: [{name: data, emptyDir: {}}]\n", name, image, resources)
		if err := own.Place(name+".yaml", text); err != nil {
			t.Fatal(err)
		}
	}
	find := func(name string) *v1.Pod {
		pods, err := own.Pods(t.Context())
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
	condition := func() string {
		out, err := own.Command(t.Context(), "get", "node", "-o", "json")
		if err != nil {
			return err.Error()
		}
		var shown v1.Node
		if err := json.Unmarshal([]byte(out), &shown); err != nil {
			return err.Error()
		}
		for _, c := range shown.Status.Conditions {
			if c.Type == v1.NodeDiskPressure {
				return string(c.Status)
			}
		}
		return out
	}
	const asks = `{requests: {cpu: 10m, memory: 16Mi, ephemeral-storage: 8Mi}, limits: {cpu: 10m, memory: 16Mi, ephemeral-storage: 8Mi}}`
	apply("modest", asks)
	apply("greedy", "{}")
	awaitThat(t, "both pods to be Ready", func() bool {
		modest, greedy := find("modest"), find("greedy")
		return modest != nil && greedy != nil && ready(modest) && ready(greedy)
	})
	awaitThat(t, "the disk to be well", func() bool { return condition() == "False" })
	greedy := find("greedy")
	full := filepath.Join(state, "root", "pods", string(greedy.UID), "volumes", "kubernetes.io~empty-dir", "data", "full")
	fill(t, full, 600<<20)
	awaitThat(t, "the disk to be short", func() bool { return condition() == "True" })
	awaitThat(t, "the pod that fills it to be evicted", func() bool { p := find("greedy"); return p != nil && p.Status.Phase == v1.PodFailed })
	greedy = find("greedy")
	if greedy.Status.Reason != "Evicted" || !strings.HasPrefix(greedy.Status.Message, "The node was low on resource: ephemeral-storage. Threshold quantity: 400Mi, available: ") {
		t.Errorf("it is %s: %s", greedy.Status.Reason, greedy.Status.Message)
	}
	disrupted := false
	for _, c := range greedy.Status.Conditions {
		disrupted = disrupted || c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "TerminationByKubelet"
	}
	if !disrupted {
		t.Errorf("its conditions are %+v", greedy.Status.Conditions)
	}
	freed := time.Now()
	awaitThat(t, "its volume to be gone", func() bool { _, err := os.Stat(full); return os.IsNotExist(err) })
	awaitThat(t, "the disk to be well again", func() bool { return condition() == "False" })
	if after := time.Since(freed); after < 10*time.Second {
		t.Errorf("the Node has said that the disk is short for only %s longer", after)
	}
	if modest := find("modest"); modest == nil || !ready(modest) || modest.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the other pod: %+v", modest)
	}
	if events, err := own.Command(t.Context(), "events"); err != nil || !strings.Contains(events, "Evicted") {
		t.Errorf("the events are %s, %v", events, err)
	}
}

// fill makes a file that takes so many bytes.
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
