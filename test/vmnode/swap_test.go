package vmnode

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// swappers are two pods of an API server that need more memory than their limit. Those of other sources are critical,
// and do not swap.
func swappers() []string {
	pod := func(name, request string) string {
		return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod",
			"metadata": {"name": "%s-api", "namespace": "vm", "uid": "%s"},
			"spec": {"nodeName": "machine", "hostNetwork": true, "restartPolicy": "Never", "enableServiceLinks": false,
				"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": "quartet.local/hello:1",
				"args": ["grow", "-mib", "130"], "resources": {
					"requests": {"cpu": "100m", "memory": "%s"}, "limits": {"cpu": "100m", "memory": "112Mi"}}}]}}`,
			name, name, request)
	}
	return []string{pod("swaps", "96Mi"), pod("cannotswap", "112Mi")}
}

// testSwap has a burstable pod that needs more memory than its limit: it swaps, and is not killed. A guaranteed one is.
func testSwap(n *node) {
	dead := n.awaitPod("cannotswap", "killed", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodFailed })
	if end := status(dead).State.Terminated; end == nil || end.Reason != "OOMKilled" {
		n.t.Errorf("the guaranteed container has ended with %+v", end)
	}
	pod := n.ready("swaps")
	cgroup := n.containerCgroup(pod)
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		n.t.Fatal(err)
	}
	limit := int64(float64(96<<20) / float64(machine.Totalram) * float64(machine.Totalswap))
	n.wantFiles(cgroup, map[string]string{
		"memory.max": mib(112), "memory.swap.max": strconv.FormatInt(limit/4096*4096, 10),
	})
	n.await("the container swaps", func() bool {
		memory, err := strconv.Atoi(kernel(cgroup, "memory.current"))
		swap, noSwap := strconv.Atoi(kernel(cgroup, "memory.swap.current"))
		return err == nil && noSwap == nil && swap > 10<<20 && memory+swap > 130<<20
	})
	if pod := n.find("swaps"); status(pod).RestartCount != 0 || status(pod).State.Running == nil {
		n.t.Errorf("the container has not survived: %+v", status(pod))
	}
	var summary statsv1alpha1.Summary
	n.await("the summary has the swap", func() bool {
		if err := json.Unmarshal(n.get("/stats/summary"), &summary); err != nil {
			n.t.Fatal(err)
		}
		for _, pod := range summary.Pods {
			if strings.HasPrefix(pod.PodRef.Name, "swaps-") && len(pod.Containers) == 1 {
				swap := pod.Containers[0].Swap
				return swap != nil && swap.SwapUsageBytes != nil && *swap.SwapUsageBytes > 10<<20
			}
		}
		return false
	})
}
