package shutdown

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

// SyncLoop implements Engine with syncloop.
type SyncLoop struct {
	client enginev1.EngineServiceClient
}

// NewSyncLoop returns the Engine for a connection to syncloop.
func NewSyncLoop(conn grpc.ClientConnInterface) *SyncLoop {
	return &SyncLoop{client: enginev1.NewEngineServiceClient(conn)}
}

// Pods implements Engine. It excludes pods that no source names, because syncloop terminates them by itself.
func (s *SyncLoop) Pods(ctx context.Context) ([]*v1.Pod, error) {
	answer, err := s.client.ListPods(ctx, &enginev1.ListPodsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("ask syncloop for the pods: %w", err)
	}
	var pods []*v1.Pod
	for _, one := range answer.GetPods() {
		pod := &v1.Pod{}
		if err := pod.Unmarshal(one.GetPod()); err != nil {
			return nil, fmt.Errorf("read a pod that syncloop sent: %w: run the same version of both", err)
		}
		if one.GetSource() != "" && isLeft(pod.Status.Phase, one.GetWorkerState()) {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// isLeft reports whether anything of a pod may run: a refused or completed pod has ended although a source still names
// it.
func isLeft(phase v1.PodPhase, state enginev1.WorkerState) bool {
	switch state {
	case enginev1.WorkerState_WORKER_STATE_TERMINATED:
		return false
	case enginev1.WorkerState_WORKER_STATE_TERMINATING:
		return true
	case enginev1.WorkerState_WORKER_STATE_SYNCING, enginev1.WorkerState_WORKER_STATE_UNSPECIFIED:
	}
	return phase != v1.PodSucceeded && phase != v1.PodFailed
}

// End implements Engine.
func (s *SyncLoop) End(ctx context.Context, pods []End) error {
	request := &enginev1.ShutDownPodsRequest{}
	for _, end := range pods {
		request.Pods = append(
			request.Pods,
			&enginev1.PodEnd{PodUid: string(end.Pod.UID), GracePeriodSeconds: end.GraceSeconds},
		)
	}
	if _, err := s.client.ShutDownPods(ctx, request, grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("have syncloop end %d pods: %w", len(pods), err)
	}
	return nil
}

// AwaitStatuses implements Engine.
func (s *SyncLoop) AwaitStatuses(ctx context.Context) error {
	if _, err := s.client.AwaitStatuses(ctx, &enginev1.AwaitStatusesRequest{}, grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("wait for the statuses of the pods: %w", err)
	}
	return nil
}
