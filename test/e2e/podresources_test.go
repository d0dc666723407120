package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	api := dialPodsAPI(t)
	awaitThat(t, "the pods API has the pod with its status", func() bool { return readyInPodsAPI(t, api, p.UID) })
	gone := watchInPodsAPI(t, api, p.UID)
	takeAway(t, "monitored.yaml")
	awaitThat(t, "it is no longer listed", func() bool { return len(containers(p.Name)) == 0 })
	gone()
	_, err = api.GetPod(t.Context(), &podsv1alpha1.GetPodRequest{PodUID: string(p.UID)})
	if status.Code(err) != codes.NotFound {
		t.Errorf("the pods API answers for a pod that is gone with %v", err)
	}
}

// dialPodsAPI returns a client of the kubelet's pods API.
func dialPodsAPI(t *testing.T) podsv1alpha1.PodsClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(node.Layout.Root(), "pods-api", "pods-api.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is under way
	return podsv1alpha1.NewPodsClient(conn)
}

// readyInPodsAPI reports whether a pod is Ready in the list of the pods API, and the same pod by its UID.
func readyInPodsAPI(t *testing.T, api podsv1alpha1.PodsClient, uid types.UID) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := api.ListPods(ctx, &podsv1alpha1.ListPodsRequest{}, grpc.WaitForReady(true))
	one, missing := api.GetPod(ctx, &podsv1alpha1.GetPodRequest{PodUID: string(uid)})
	if err != nil || missing != nil {
		return false // syncloop may be starting
	}
	is := func(data []byte) bool {
		p := decodePod(t, data)
		return p.UID == uid && ready(p)
	}
	return slices.ContainsFunc(all.GetPods(), is) && is(one.GetPod())
}

func decodePod(t *testing.T, data []byte) *v1.Pod {
	t.Helper()
	p := &v1.Pod{}
	if err := p.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return p
}

// watchInPodsAPI watches the pods of the pods API until a pod and the end of the initial list were sent. The returned
// function waits until the pod is deleted.
func watchInPodsAPI(t *testing.T, api podsv1alpha1.PodsClient, uid types.UID) (deleted func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	watch, err := api.WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	await := func(want podsv1alpha1.EventType) {
		t.Helper()
		for {
			event, err := watch.Recv()
			if err != nil {
				t.Fatalf("the watch ends before %s: %v", want, err)
			}
			if event.GetType() == want && (event.GetPod() == nil || decodePod(t, event.GetPod()).UID == uid) {
				return
			}
		}
	}
	await(podsv1alpha1.EventType_ADDED)
	await(podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE)
	return func() {
		t.Helper()
		await(podsv1alpha1.EventType_DELETED)
	}
}
