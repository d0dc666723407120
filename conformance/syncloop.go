package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
)

const engineService = "quartet.engine.v1.EngineService"

// nobody is the UID of no pod.
const nobody = "conformance-there-is-no-such-pod"

// SyncLoop returns the rules of syncloop: quartet.engine.v1, and the stream contract for its pods. What it does with
// pods is not among them: end-to-end tests of a node check that.
func SyncLoop() Suite {
	return Suite{Service: "syncloop", rules: slices.Concat(levelStreamRules(watchPods),
		moreStreamRules("pod-events", watchPodEvents), moreStreamRules("storage", watchStorage), []rule{
			plainRule("snapshot", engineService+".WatchPods", "Keys are pod UIDs", engineSnapshot),
			plainRule("list-pods", "quartet.engine.v1.ListPodsResponse.pods", "Sorted by namespace and name.", engineListPods),
			plainRule("list-workers", "quartet.engine.v1.ListWorkersResponse.workers", "Sorted by namespace, name and UID.",
				engineListWorkers),
			plainRule("list-images", "quartet.engine.v1.ListImagesResponse.images", "Sorted by size, largest first.",
				engineListImages),
			plainRule("evict-unknown", engineService+".EvictPod", "Fails with NOT_FOUND if there is no such pod",
				func(ctx context.Context, b *bench) error {
					_, err := engineClient(b).EvictPod(ctx,
						&enginev1.EvictPodRequest{PodUid: nobody, Reason: "Evicted", Message: "a check"}, ready())
					return wantCode("EvictPod of an unknown pod", err, codes.NotFound)
				}),
			plainRule("evict-reason", engineService+".EvictPod", "INVALID_ARGUMENT if the reason is empty",
				func(ctx context.Context, b *bench) error {
					_, err := engineClient(b).EvictPod(ctx, &enginev1.EvictPodRequest{PodUid: nobody}, ready())
					return wantCode("EvictPod without a reason", err, codes.InvalidArgument)
				}),
			plainRule("shut-down-missing", engineService+".ShutDownPods", "A missing or ended pod is no error.",
				func(ctx context.Context, b *bench) error {
					_, err := engineClient(b).ShutDownPods(ctx, &enginev1.ShutDownPodsRequest{
						Pods: []*enginev1.PodEnd{{PodUid: nobody, GracePeriodSeconds: 1}},
					}, ready())
					return wantCode("ShutDownPods of a missing pod", err, codes.OK)
				}),
			plainRule("delete-volume-unknown", engineService+".DeleteReleasedVolume",
				"Fails with NOT_FOUND if there is no such volume", func(ctx context.Context, b *bench) error {
					_, err := engineClient(b).DeleteReleasedVolume(ctx,
						&enginev1.DeleteReleasedVolumeRequest{Name: nobody}, ready())
					return wantCode("DeleteReleasedVolume of an unknown volume", err, codes.NotFound)
				}),
			plainRule("health", engineService+".GetHealth", "It never fails while the process lives.", engineHealth),
		})}
}

func engineClient(b *bench) enginev1.EngineServiceClient {
	return enginev1.NewEngineServiceClient(b.part.Conn)
}

// watchPods is the watch of the pods.
func watchPods(b *bench) watch {
	return func(ctx context.Context, token []byte) (receive, error) {
		stream, err := engineClient(b).WatchPods(ctx, &enginev1.WatchPodsRequest{ResumeToken: token}, ready())
		if err != nil {
			return nil, err
		}
		return func() (message, error) {
			m, err := stream.Recv()
			if err != nil {
				return message{}, err
			}
			return message{Frame: m.GetFrame(), payload: m.GetPod()}, nil
		}, nil
	}
}

// watchPodEvents is the watch of the events.
func watchPodEvents(b *bench) watch {
	return watchOf(func(
		ctx context.Context, token []byte,
	) (interface {
		Recv() (*enginev1.WatchPodEventsResponse, error)
	}, error) {
		return engineClient(b).WatchPodEvents(ctx, &enginev1.WatchPodEventsRequest{ResumeToken: token}, ready())
	})
}

// watchStorage is the watch of what plugins and volumes add to the Node.
func watchStorage(b *bench) watch {
	return watchOf(func(
		ctx context.Context, token []byte,
	) (interface {
		Recv() (*enginev1.WatchStorageResponse, error)
	}, error) {
		return engineClient(b).WatchStorage(ctx, &enginev1.WatchStorageRequest{ResumeToken: token}, ready())
	})
}

// enginePods returns the pods of ListPods.
func enginePods(ctx context.Context, b *bench) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	err := b.eventually(ctx, func(ctx context.Context) error {
		resp, err := engineClient(b).ListPods(ctx, &enginev1.ListPodsRequest{}, ready())
		if err != nil {
			return fmt.Errorf("ListPods: %w", err)
		}
		pods = make([]corev1.Pod, len(resp.GetPods()))
		for i, item := range resp.GetPods() {
			if err := pods[i].Unmarshal(item.GetPod()); err != nil {
				return fmt.Errorf("decoding a pod: %w", err)
			}
		}
		return nil
	})
	return pods, err
}

func engineSnapshot(ctx context.Context, b *bench) error {
	return b.eventually(ctx, func(ctx context.Context) error {
		pods, err := enginePods(ctx, b)
		if err != nil {
			return err
		}
		_, begun, err := b.watching(ctx, watchPods(b), nil)
		if err != nil {
			return err
		}
		want := map[string]bool{}
		for _, pod := range pods {
			want[string(pod.UID)] = true
		}
		return sameKeys(want, begun)
	})
}

func engineListPods(ctx context.Context, b *bench) error {
	pods, err := enginePods(ctx, b)
	if err != nil {
		return err
	}
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Namespace+"\x00"+pod.Name)
	}
	return sorted(names)
}

func engineListWorkers(ctx context.Context, b *bench) error {
	resp, err := engineClient(b).ListWorkers(ctx, &enginev1.ListWorkersRequest{}, ready())
	if err != nil {
		return fmt.Errorf("ListWorkers: %w", err)
	}
	var names []string
	for _, w := range resp.GetWorkers() {
		names = append(names, w.GetNamespace()+"\x00"+w.GetName()+"\x00"+w.GetPodUid())
	}
	return sorted(names)
}

func engineListImages(ctx context.Context, b *bench) error {
	resp, err := engineClient(b).ListImages(ctx, &enginev1.ListImagesRequest{}, ready())
	if err != nil {
		return fmt.Errorf("ListImages: %w", err)
	}
	images := resp.GetImages()
	if len(images) < 2 {
		return skip("there are fewer than two")
	}
	for i, image := range images[1:] {
		if image.GetSizeBytes() > images[i].GetSizeBytes() {
			return fmt.Errorf("image %d is larger than the one before", i+1)
		}
	}
	return nil
}

func engineHealth(ctx context.Context, b *bench) error {
	health, err := engineClient(b).GetHealth(ctx, &enginev1.GetHealthRequest{}, ready())
	if err != nil {
		return fmt.Errorf("GetHealth: %w", err)
	}
	if !health.GetHealthy() && len(health.GetReasons()) == 0 {
		return errors.New("it is unhealthy without a reason")
	}
	return nil
}
