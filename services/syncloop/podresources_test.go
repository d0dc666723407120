package main

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/quartet-node/quartet/services/syncloop/internal/api/podresources"
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
