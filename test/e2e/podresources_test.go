package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// TestMonitoringGetsPods uses the pod resources API as a kubelet's clients do, on its socket, also after a kill of
// syncloop.
func TestMonitoringGetsPods(t *testing.T) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(node.Layout.Root(), "pod-resources", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	containers := func(pod string) []string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		answer, err := client.List(ctx, &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return []string{err.Error()}
		}
		var names []string
		for _, p := range answer.GetPodResources() {
			for _, c := range p.GetContainers() {
				if p.GetNamespace() == "e2e" && p.GetName() == pod {
					names = append(names, c.GetName())
				}
			}
		}
		return names
	}
	place(t, "monitored.yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: monitored, namespace: e2e}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: before, image: %[1]q, args: [init]}
  - {name: beside, image: %[1]q, args: [sleep], restartPolicy: Always}
  containers:
  - {name: main, image: %[1]q, args: [sleep]}
`, image))
	p := await(t, "monitored", "Ready", ready)
	listed := func() bool { return slices.Equal(containers(p.Name), []string{"beside", "main"}) }
	awaitThat(t, "its sidecar and its container are listed", listed)
	old := pid(t, "syncloop")
	kill(t, "syncloop")
	awaitNewPID(t, "syncloop", old)
	awaitThat(t, "the next syncloop tells the same", listed)
	awaitThat(t, "the pods API has the pod with its status", func() bool { return readyInPodsAPI(t, p.Name) })
	takeAway(t, "monitored.yaml")
	awaitThat(t, "it is no longer listed", func() bool { return len(containers(p.Name)) == 0 })
}

// readyInPodsAPI reports whether a pod is Ready by the kubelet's pods API.
func readyInPodsAPI(t *testing.T, name string) bool {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(node.Layout.Root(), "pods-api", "pods-api.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is under way
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := podsv1alpha1.NewPodsClient(conn).ListPods(ctx, &podsv1alpha1.ListPodsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return false // syncloop may be starting
	}
	return slices.ContainsFunc(answer.GetPods(), func(data []byte) bool {
		p := &v1.Pod{}
		if err := p.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		return p.Name == name && ready(p)
	})
}
