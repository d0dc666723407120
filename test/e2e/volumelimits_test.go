package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestAPodWhoseVolumeIsLargerThanItMayBeIsEvicted, with the status of a kubelet's, its volumes are given back, and no other pod notices.
func TestAPodWhoseVolumeIsLargerThanItMayBeIsEvicted(t *testing.T) {
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(config, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nvolumeStatsAggPeriod: 1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	restartServices(t, "--config", config)
	limited := func(name string) string {
		return strings.Replace(manifest(name, 1, "sleep"), `args: ["sleep"]`, `args: ["sleep"], volumeMounts: [{name: data, mountPath: /data}]`, 1) +
			"  volumes: [{name: data, emptyDir: {sizeLimit: 1Mi}}]\n"
	}
	place(t, "greedy.yaml", limited("greedy"))
	place(t, "modest.yaml", limited("modest"))
	greedy, modest := await(t, "greedy", "Ready", ready), await(t, "modest", "Ready", ready)
	for p, size := range map[*v1.Pod]int{greedy: 2 << 20, modest: 1 << 19} {
		if err := os.WriteFile(inside(t, p, "main")+"/data/large", make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ended := await(t, "greedy", "evicted", func(p *v1.Pod) bool { return p != nil && p.Status.Phase == v1.PodFailed })
	if s := ended.Status; s.Reason != "Evicted" || s.Message != `Usage of EmptyDir volume "data" exceeds the limit "1Mi". ` {
		t.Errorf("its status is\n%s", describe(ended))
	}
	awaitThat(t, "its volume is removed, though its manifest is there still", func() bool {
		_, err := os.Lstat(filepath.Join(node.PodDir(ended), "volumes/kubernetes.io~empty-dir/data"))
		return errors.Is(err, os.ErrNotExist)
	})
	if again := await(t, "modest", "Ready", ready); containerIDs(again)["main"] != containerIDs(modest)["main"] {
		t.Error("the other pod was restarted")
	}
}
