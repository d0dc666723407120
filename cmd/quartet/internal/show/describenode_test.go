package show

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/quartet-node/quartet/internal/layout"
)

// wholeNode returns a node with all kinds of fields.
func wholeNode() *v1.Node {
	node := readyNode()
	node.Labels = map[string]string{"kubernetes.io/hostname": "node-1", "disk": "ssd"}
	node.Annotations = map[string]string{"example.com/rack": "r1"}
	node.Spec.Taints = []v1.Taint{{Key: "only", Value: "gpu", Effect: v1.TaintEffectNoSchedule}}
	node.Spec.PodCIDR = "10.88.0.0/24"
	node.Status.Capacity["example.com/gpu"] = resource.MustParse("4")
	node.Status.Allocatable = node.Status.Capacity.DeepCopy()
	node.Status.Allocatable[v1.ResourceCPU] = resource.MustParse("3900m")
	node.Status.Addresses = append(node.Status.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: "node-1"})
	node.Status.DeclaredFeatures = []string{"First", "Second"}
	for i := range node.Status.Conditions {
		node.Status.Conditions[i].LastTransitionTime = metav1.NewTime(ago(time.Hour))
	}
	return node
}

// heldResources are those of pods with devices, exclusive CPUs, memory and claims, as the pod-resources API has them.
const heldResources = `{"podResources": [
  {"name": "web", "namespace": "shop", "containers": [
    {"name": "main", "cpuIds": ["3", "2", "8"], "devices": [
      {"resourceName": "example.com/nic", "deviceIds": ["x"]},
      {"resourceName": "example.com/gpu", "deviceIds": ["a"], "topology": {"nodes": [{"ID": "0"}]}},
      {"resourceName": "example.com/gpu", "deviceIds": ["a"], "topology": {"nodes": [{"ID": "1"}]}}],
     "memory": [{"memoryType": "memory", "size": "1073741824", "topology": {"nodes": [{"ID": "0"}]}}]},
    {"name": "side"}]},
  {"name": "train", "namespace": "ml", "containers": [
    {"name": "main", "devices": [{"resourceName": "example.com/gpu", "deviceIds": ["b", "c"]}],
     "dynamicResources": [
      {"claimName": "fast", "claimNamespace": "ml", "claimResources": [
        {"driverName": "gpu.example.com", "poolName": "node-1", "deviceName": "gpu-0"},
        {"driverName": "gpu.example.com", "poolName": "node-1", "deviceName": "gpu-1"}]},
      {"claimName": "all", "claimNamespace": "ml"}]}]}]}`

func TestDescribeNode(t *testing.T) {
	n := newNode(t)
	n.serve(layout.NodeStatus)
	n.node.put(t, readyNode())
	if _, _, err := n.run("describe", "node"); err == nil || !strings.HasPrefix(err.Error(), "cannot reach syncloop") {
		t.Errorf("without syncloop: %v", err)
	}
	n.serve(layout.SyncLoop)
	golden(t, "describe-node-empty.txt", n.must("describe", "node"))

	n.node.putAs(t, wholeNode(), false, true)
	web := pod("shop", "web", "main", "side")
	amounts := func(cpu string) v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("1Gi"),
			"example.com/gpu": resource.MustParse("1"),
		}
	}
	web.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: amounts("3"), Limits: amounts("6")}
	n.putPod(web, "api", syncing)
	n.putPod(pod("ml", "train", "main"), "file", syncing)
	done := pod("ml", "done", "main")
	done.Status.Phase = v1.PodSucceeded
	n.putPod(done, "api", syncing)
	n.putPod(pod("old", "orphan", "main"), "", terminating)
	if err := protojson.Unmarshal([]byte(heldResources), &n.engine.resources); err != nil {
		t.Fatal(err)
	}
	n.putNodeEvent(layout.NodeStatus, v1.EventTypeWarning, "Rebooted", "Node node-1 has been rebooted", ago(2*time.Hour))
	golden(t, "describe-node.txt", n.must("describe", "node"))
	golden(t, "describe-node.yaml", n.must("describe", "no", "-o", "yaml"))
	var printed struct {
		Node      v1.Node
		Resources struct{ PodResources []struct{ Name string } }
		Events    []v1.Event
	}
	if err := json.Unmarshal([]byte(n.must("describe", "nodes", "-o", "json")), &printed); err != nil {
		t.Fatal(err)
	}
	if printed.Node.Name != "node-1" || len(printed.Resources.PodResources) != 2 || len(printed.Events) != 1 {
		t.Errorf("as JSON: %+v", printed)
	}
}

func TestNumbersAreRanges(t *testing.T) {
	for want, all := range map[string][]int64{"": nil, "4": {4}, "0-3,8": {8, 3, 2, 1, 0, 0}, "1,3,5-6": {1, 3, 5, 6}} {
		if got := numbers(all); got != want {
			t.Errorf("numbers(%v) = %q, want %q", all, got, want)
		}
	}
	if got := nodesOf(nil, &podresourcesv1.TopologyInfo{}); got != noValue {
		t.Errorf("without NUMA nodes: %q, want %q", got, noValue)
	}
}
