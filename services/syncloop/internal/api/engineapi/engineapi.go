// Package engineapi serves EngineService, syncloop's API for the other processes of the node, from the store, the
// worker pool and the loop. It makes no decisions.
package engineapi

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/internal/stream/streamrpc"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
)

// Evicter ends pods for good; it is implemented by Evictions.
type Evicter interface {
	// Evict begins to end a pod. Grace is in seconds; a negative value means the pod's own grace period. It returns
	// podstore.ErrNotFound for an unknown pod.
	Evict(ctx context.Context, uid types.UID, eviction podstore.Eviction, grace int64) error
}

// ErrNoVolume is the error of Config.Forget for a volume that there is not.
var ErrNoVolume = errors.New("there is no such persistent volume")

// Config configures a Server.
type Config struct {
	Store   *podstore.Store
	Workers interface{ List() []*enginev1.Worker }
	// Probes returns the results of a pod's probes: (*prober.Manager).Describe. Nil is a node without a prober.
	Probes func(types.UID) []*enginev1.Probe
	// Volumes returns the state of a pod's volumes: (*volumes.Manager).Describe. Nil returns none.
	Volumes func(types.UID) []*enginev1.Volume
	Health  func() loop.Health
	Evicter Evicter
	// Shutdown ends pods before the machine shuts down.
	Shutdown Shutdown
	// Readings returns the node's eviction signals: (*stats.Stats).Readings. Nil returns none.
	Readings func() []*enginev1.SignalReading
	// Events streams the events of pods: (*podevents.Recorder).Stream.
	Events stream.Source[*enginev1.PodEvent]
	// Storage returns the stream of the node's storage, or an error until it is known: (*inventory.Inventory).Source.
	Storage func() (stream.Source[*enginev1.StorageItem], error)
	// Claims returns the claims of the node that pods have used: (*nodeclaims.Claims).Describe. Nil is a node without
	// any.
	Claims func() []*enginev1.Claim
	// Released returns the volumes whose claims were deleted: (*nodevolumes.Volumes).Describe. Nil is a node without any.
	Released func() []*enginev1.ReleasedVolume
	// Forget forgets one of them, and returns its driver and its handle. It fails with ErrNoVolume if there is no such
	// volume. Nil is a node without any.
	Forget func(ctx context.Context, name string) (driver, handle string, err error)
	// AllVolumes returns the volumes of pods: (*volumes.Manager).List. Nil returns none. Unused returns the staged volumes
	// that no pod uses: (*csi.Plugin).Unused. Nil returns none.
	AllVolumes func() []*enginev1.PodVolume
	Unused     func() []*enginev1.Volume
	// Resources returns what the containers of each pod have for themselves: podresources.Listed. Nil returns none.
	Resources func() (*podresourcesv1.ListPodResourcesResponse, error)
	// Images returns the connected image service, or an error while there is none.
	Images func() (internalapi.ImageManagerService, error)
}

// Server implements EngineService.
type Server struct {
	enginev1.UnimplementedEngineServiceServer
	cfg Config
}

// New returns a Server.
func New(cfg Config) *Server { return &Server{cfg: cfg} }

// ListPods implements EngineService.
func (s *Server) ListPods(context.Context, *enginev1.ListPodsRequest) (*enginev1.ListPodsResponse, error) {
	pods, err := s.cfg.Store.List()
	if err != nil {
		return nil, toStatus(err)
	}
	return &enginev1.ListPodsResponse{Pods: pods}, nil
}

// WatchPods implements EngineService.
func (s *Server) WatchPods(
	req *enginev1.WatchPodsRequest, ss grpc.ServerStreamingServer[enginev1.WatchPodsResponse],
) error {
	source, err := s.cfg.Store.Source()
	if err != nil {
		return toStatus(err)
	}
	return streamrpc.Serve(ss.Context(), source, req.GetResumeToken(),
		func(frame *streamv1.Frame, pod *enginev1.Pod) error {
			return ss.Send(&enginev1.WatchPodsResponse{Frame: frame, Pod: pod})
		})
}

// WatchPodEvents implements EngineService.
func (s *Server) WatchPodEvents(
	req *enginev1.WatchPodEventsRequest, ss grpc.ServerStreamingServer[enginev1.WatchPodEventsResponse],
) error {
	return streamrpc.Serve(ss.Context(), s.cfg.Events, req.GetResumeToken(),
		func(frame *streamv1.Frame, event *enginev1.PodEvent) error {
			return ss.Send(&enginev1.WatchPodEventsResponse{Frame: frame, Event: event})
		})
}

// WatchStorage implements EngineService.
func (s *Server) WatchStorage(
	req *enginev1.WatchStorageRequest, ss grpc.ServerStreamingServer[enginev1.WatchStorageResponse],
) error {
	source, err := s.cfg.Storage()
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return streamrpc.Serve(ss.Context(), source, req.GetResumeToken(),
		func(frame *streamv1.Frame, item *enginev1.StorageItem) error {
			return ss.Send(&enginev1.WatchStorageResponse{Frame: frame, Item: item})
		})
}

// EvictPod implements EngineService.
func (s *Server) EvictPod(ctx context.Context, req *enginev1.EvictPodRequest) (*enginev1.EvictPodResponse, error) {
	if req.GetReason() == "" {
		return nil, status.Error(codes.InvalidArgument, "reason: give one word, for example Evicted")
	}
	eviction := podstore.Eviction{Reason: req.GetReason(), Message: req.GetMessage()}
	if err := s.cfg.Evicter.Evict(ctx, types.UID(req.GetPodUid()), eviction, req.GetGracePeriodSeconds()); err != nil {
		return nil, toStatus(err)
	}
	return &enginev1.EvictPodResponse{}, nil
}

// GetHealth implements EngineService.
func (s *Server) GetHealth(context.Context, *enginev1.GetHealthRequest) (*enginev1.GetHealthResponse, error) {
	health := s.cfg.Health()
	answer := &enginev1.GetHealthResponse{
		Healthy: health.Healthy, Reasons: health.Reasons, Pods: int32(s.cfg.Store.Len()), //nolint:gosec // a node's pods fit
		ConfigmuxAway: health.ConfigMux,
	}
	if !health.LastTurn.IsZero() {
		answer.LastTurnAt = timestamppb.New(health.LastTurn)
	}
	if s.cfg.Readings != nil {
		answer.Readings = s.cfg.Readings()
	}
	return answer, nil
}

// toStatus returns an error with its gRPC code.
func toStatus(err error) error {
	var notReady *podstore.NotReadyError
	switch {
	case errors.As(err, &notReady):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, podstore.ErrNotFound):
		return status.Error(codes.NotFound, err.Error())
	default:
		return status.Error(codes.Internal, err.Error())
	}
}

// Evictions is the Evicter of a node. It saves, shows and executes an eviction, in this order, so that a pod whose
// eviction is interrupted by a crash is evicted by the next process.
type Evictions struct {
	// Book stores evictions across restarts.
	Book interface {
		Put(uid types.UID, e podstore.Eviction)
	}
	// Store shows evictions in the pods' status.
	Store *podstore.Store
	// Metrics counts them. Required.
	Metrics *Metrics
	// Events records evictions: *podevents.Recorder. Nil discards the events.
	Events interface {
		AnnotatedWarning(ctx context.Context, pod *v1.Pod, container, reason, message string, annotations map[string]string)
	}
	// Workers ends the pods.
	Workers interface {
		End(uid types.UID, cause podworkers.Cause, end podworkers.End) bool
	}
}

// Evict implements Evicter.
func (e *Evictions) Evict(ctx context.Context, uid types.UID, eviction podstore.Eviction, grace int64) error {
	return e.EvictAnnotated(ctx, uid, eviction, grace, nil)
}

// EvictAnnotated is Evict with annotations on the event, which programs read. It returns the same errors as Evict.
func (e *Evictions) EvictAnnotated(
	ctx context.Context, uid types.UID, eviction podstore.Eviction, grace int64, annotations map[string]string,
) error {
	pod, err := e.end(uid, eviction, grace)
	if err != nil {
		return err
	}
	e.Metrics.evicted()
	if e.Events != nil {
		e.Events.AnnotatedWarning(ctx, pod, "", eviction.Reason, eviction.Message, annotations)
	}
	return nil
}

// Reject ends a pod that was admitted and cannot run, in the kubelet's words. It returns the same errors as Evict.
func (e *Evictions) Reject(ctx context.Context, uid types.UID, reason, message string) error {
	pod, err := e.end(uid, podstore.Eviction{Reason: reason, Message: admission.RejectedPrefix + message}, ownGrace)
	if err != nil {
		return err
	}
	if e.Events != nil {
		e.Events.AnnotatedWarning(ctx, pod, "", reason, message, nil)
	}
	return nil
}

// end saves, shows and executes an eviction, and returns the pod.
func (e *Evictions) end(uid types.UID, eviction podstore.Eviction, grace int64) (*v1.Pod, error) {
	pod := e.Store.Pod(uid)
	if pod == nil {
		return nil, fmt.Errorf("pod %s: %w", uid, podstore.ErrNotFound)
	}
	eviction.Discard = true
	e.Book.Put(uid, eviction)
	if err := e.Store.Evict(uid, eviction); err != nil {
		return nil, err
	}
	end := podworkers.End{}
	if grace >= 0 {
		end.Grace = &grace
	}
	// A pod without a worker gets one that ends it, because the loop reads the book.
	e.Workers.End(uid, podworkers.Cause{Kind: podworkers.CauseConfig}, end)
	return pod, nil
}

// ownGrace selects the pod's own grace period.
const ownGrace = -1

// Preempt ends a pod to make room for another one, with the pod's own grace period. It returns the same errors as
// Evict.
func (e *Evictions) Preempt(ctx context.Context, uid types.UID, eviction podstore.Eviction) error {
	return e.Evict(ctx, uid, eviction, ownGrace)
}
