package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/test/livenode"
)

// TestAPodThatTakesMoreOfTheDiskThanItMayIsEvicted tests the limit of a volume, of the whole pod, and of the writable
// layer of one container: the pod has the status of a kubelet's eviction, its volumes are removed, and other pods are
// not affected.
func TestAPodThatTakesMoreOfTheDiskThanItMayIsEvicted(t *testing.T) {
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nvolumeStatsAggPeriod: 1s\n"+livenode.AnyMachine), 0o600); err != nil {
		t.Fatal(err)
	}
	node.RestartServices(t, "--config", config)
	limited := func(name, volume, disk string) string {
		text := strings.Replace(manifest(name, 1, "sleep"), `args: ["sleep"]`,
			`args: ["sleep"], volumeMounts: [{name: data, mountPath: /data}], resources: {limits: {`+disk+`}}`, 1)
		return text + "  - {name: other, image: " + image + ", args: [sleep], resources: {limits: {" + strings.Replace(disk, "1Mi", "8Mi", 1) + "}}}\n" +
			"  volumes: [{name: data, emptyDir: {" + volume + "}}]\n"
	}
	// write starts a pod that writes a file of a size.
	write := func(name, volume, disk, file string, size int) *v1.Pod {
		place(t, name+".yaml", limited(name, volume, disk))
		started := await(t, name, "Ready", ready)
		if err := os.WriteFile(filepath.Join(inside(t, started, "main"), file), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		return started
	}
	const volume, disk = "sizeLimit: 1Mi", "ephemeral-storage: 1Mi"
	write("greedy-volume", volume, "", "data/large", 2<<20)
	write("greedy-pod", "", disk, "data/large", 10<<20)
	write("greedy-container", "", disk, "large", 2<<20)
	modest := write("modest", volume, disk, "data/small", 1<<19)
	for name, message := range map[string]string{
		"greedy-volume":    `Usage of EmptyDir volume "data" exceeds the limit "1Mi". `,
		"greedy-pod":       "Pod ephemeral local storage usage exceeds the total limit of containers 9Mi. ",
		"greedy-container": `Container main exceeded its local ephemeral storage limit "1Mi". `,
	} {
		ended := await(t, name, "evicted", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodFailed })
		if s := ended.Status; s.Reason != "Evicted" || s.Message != message {
			t.Errorf("its status is\n%s\nwant s.Reason %q and s.Message %v", describe(ended), "Evicted", message)
		}
		awaitThat(t, "its volume is removed, though its manifest is there still", func() bool {
			_, err := os.Lstat(filepath.Join(node.PodDir(ended), "volumes/kubernetes.io~empty-dir/data"))
			return errors.Is(err, os.ErrNotExist)
		})
	}
	if again := await(t, "modest", "Ready", ready); containerIDs(again)["main"] != containerIDs(modest)["main"] {
		t.Error("the other pod was restarted")
	}
}
