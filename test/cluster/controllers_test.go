package cluster_test

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/eventually"
)

// TestAWholeClusterBindsThePodsOfADeployment: the controllers create the pods and the scheduler binds them to a Ready
// node, each with its service account; both controllers recover after a kill.
func TestAWholeClusterBindsThePodsOfADeployment(t *testing.T) {
	c := cluster.Start(t, cluster.Controllers("--node-monitor-grace-period=1h"))
	admin := c.Client(t)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-whole"},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				LastHeartbeatTime: metav1.Now()}},
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10"), corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
	}
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "whole"}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "whole"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("", "").Spec},
		},
	}
	if _, err := admin.AppsV1().Deployments("default").Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	bound := func(want int) func() bool {
		return func() bool { return len(names(t, admin, of("node-whole"))) == want }
	}
	eventually.In(ctx, t, "both pods are bound", bound(2))
	list, err := admin.CoreV1().Pods("default").List(t.Context(), of("node-whole"))
	if err != nil {
		t.Fatal(err)
	}
	if account := list.Items[0].Spec.ServiceAccountName; account != "default" {
		t.Errorf("a pod has the service account %q, want %q", account, "default")
	}
	c.ControllerManager.Kill(t)
	c.Scheduler.Kill(t)
	if _, err := admin.AppsV1().Deployments("default").Patch(t.Context(), "whole", "application/merge-patch+json",
		[]byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.ControllerManager.Start(t)
	c.Scheduler.Start(t)
	eventually.In(ctx, t, "a third pod is bound after both were killed", bound(3))
}
