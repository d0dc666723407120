package syncloop

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/quartet-node/quartet/services/syncloop/internal/api/podresources"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/podsapi"
)

// TestPodsAreListedOnTheKubeletsSocket checks that each syncloop serves the pod-resources API on the socket in the root
// directory, also after a restart.
func TestPodsAreListedOnTheKubeletsSocket(t *testing.T) {
	m := newMachine(t)
	m.put(newPod("u1", "web", "a", "b"))
	m.configmux.speak()
	conn, err := grpc.NewClient("unix://"+podresources.Socket(m.cfg.RootDir), grpc.WithTransportCredentials(insecure.NewCredentials()))
	noError(t, err)
	defer func() { noError(t, conn.Close()) }()
	client := podresourcesv1.NewPodResourcesListerClient(conn)
	for range 2 {
		stop := m.start()
		m.eventually("its containers are listed", func() bool {
			answer, err := client.Get(t.Context(),
				&podresourcesv1.GetPodResourcesRequest{PodNamespace: "default", PodName: "web"}, grpc.WaitForReady(true))
			return err == nil && len(answer.GetPodResources().GetContainers()) == 2
		})
		stop()
	}
}

// TestPodsAreWatchedOnTheKubeletsSocket checks that each syncloop serves the pods API on the socket in the root
// directory, with the status that it computes.
func TestPodsAreWatchedOnTheKubeletsSocket(t *testing.T) {
	m := newMachine(t)
	m.put(newPod("u1", "web", "a"))
	m.configmux.speak()
	conn, err := grpc.NewClient("unix://"+podsapi.Socket(m.cfg.RootDir), grpc.WithTransportCredentials(insecure.NewCredentials()))
	noError(t, err)
	defer func() { noError(t, conn.Close()) }()
	client := podsv1alpha1.NewPodsClient(conn)
	for range 2 {
		stop := m.start()
		m.eventually("the pods are known", func() bool {
			all, err := client.ListPods(t.Context(), &podsv1alpha1.ListPodsRequest{}, grpc.WaitForReady(true))
			return err == nil && len(all.GetPods()) == 1
		})
		watch, err := client.WatchPods(t.Context(), &podsv1alpha1.WatchPodsRequest{})
		noError(t, err)
		for running := false; !running; {
			event, err := watch.Recv()
			noError(t, err)
			pod := &v1.Pod{}
			noError(t, pod.Unmarshal(event.GetPod()))
			running = pod.Name == "web" && pod.Status.Phase == v1.PodRunning
		}
		stop()
	}
}
