// Package podsapi serves the kubelet's pods API, version v1alpha1, on the kubelet's socket. Programs on this machine
// use it to read the pods of the node with their present status, and to follow their changes, without an API server.
//
// A watch is a subscription to the store's stream: a slow client costs a cursor, and gets the latest version of each
// pod. A kubelet ends the watch of a client that is 100 events behind.
package podsapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/localapi"
)

// Socket returns the path of the socket in a root directory, which is the kubelet's.
func Socket(rootDir string) string { return filepath.Join(rootDir, "pods-api", "pods-api.sock") }

// Pods has the pods of the node; *podstore.Store implements it. Its methods fail while the pods are unknown.
type Pods interface {
	// List returns every pod, those that are only in the runtime included, which have no source.
	List() ([]*enginev1.Pod, error)
	// Source returns the stream of these pods. Keys are their UIDs.
	Source() (stream.Source[*enginev1.Pod], error)
}

// Config configures Serve. All fields are required.
type Config struct {
	// Path is the path of the socket, see Socket.
	Path string
	// Pods has the pods.
	Pods Pods
	// Metrics counts requests.
	Metrics *Metrics
	// Logger logs refused users.
	Logger *slog.Logger
	// Clock is the time.
	Clock clock.PassiveClock
}

// Serve serves requests until ctx ends, and then returns nil. It replaces a stale socket. It fails if it cannot listen.
func Serve(ctx context.Context, cfg Config) error {
	return localapi.Serve(ctx, localapi.Config{
		Path: cfg.Path, Logger: cfg.Logger, Clock: cfg.Clock, Unary: cfg.Metrics.unary, Stream: cfg.Metrics.stream,
		Register: func(server *grpc.Server) { podsv1alpha1.RegisterPodsServer(server, pods{cfg: cfg}) },
	})
}

// pods implements the API.
type pods struct {
	podsv1alpha1.UnimplementedPodsServer

	cfg Config
}

// notReady returns the kubelet's status for the time before the pods are known, with what is waited for.
func notReady(err error) error {
	return status.Error(codes.FailedPrecondition, "Kubelet is initializing: "+err.Error())
}

// isOrphan reports whether a pod is only in the runtime. As in the kubelet, the API does not have it.
func isOrphan(p *enginev1.Pod) bool { return p.GetSource() == "" }

// list returns the pods that have a source.
func (s pods) list() ([]*enginev1.Pod, error) {
	all, err := s.cfg.Pods.List()
	if err != nil {
		return nil, notReady(err)
	}
	return slices.DeleteFunc(all, isOrphan), nil
}

// ListPods implements podsv1alpha1.PodsServer. It returns the pods in the order of their UIDs.
func (s pods) ListPods(context.Context, *podsv1alpha1.ListPodsRequest) (*podsv1alpha1.ListPodsResponse, error) {
	all, err := s.list()
	if err != nil {
		return nil, err
	}
	type one struct {
		uid  string
		data []byte
	}
	sorted := make([]one, 0, len(all))
	for _, p := range all {
		pod, err := decode(p)
		if err != nil {
			return nil, err
		}
		sorted = append(sorted, one{uid: string(pod.UID), data: p.GetPod()})
	}
	slices.SortFunc(sorted, func(a, b one) int { return cmp.Compare(a.uid, b.uid) })
	answer := &podsv1alpha1.ListPodsResponse{Pods: make([][]byte, 0, len(sorted))}
	for _, p := range sorted {
		answer.Pods = append(answer.Pods, p.data)
	}
	return answer, nil
}

// GetPod implements podsv1alpha1.PodsServer.
func (s pods) GetPod(
	_ context.Context, request *podsv1alpha1.GetPodRequest,
) (*podsv1alpha1.GetPodResponse, error) {
	all, err := s.list()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		pod, err := decode(p)
		if err != nil {
			return nil, err
		}
		if string(pod.UID) == request.GetPodUID() {
			return &podsv1alpha1.GetPodResponse{Pod: p.GetPod()}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", request.GetPodUID())
}

func decode(p *enginev1.Pod) (*v1.Pod, error) {
	pod := &v1.Pod{}
	if err := pod.Unmarshal(p.GetPod()); err != nil {
		return nil, status.Errorf(codes.Internal, "failed to unmarshal pod: %v", err)
	}
	return pod, nil
}

// WatchPods implements podsv1alpha1.PodsServer.
func (s pods) WatchPods(
	_ *podsv1alpha1.WatchPodsRequest, ss grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent],
) error {
	source, err := s.cfg.Pods.Source()
	if err != nil {
		return notReady(err)
	}
	watch, err := source.Subscribe(ss.Context(), nil)
	if err != nil {
		return ended(err)
	}
	defer watch.Close()
	sent := map[string]bool{}
	for {
		message, err := watch.Next(ss.Context())
		if err != nil {
			return ended(err)
		}
		event, err := eventOf(message, sent)
		if err != nil {
			return err
		}
		if event == nil {
			continue
		}
		if err := ss.Send(event); err != nil {
			return err
		}
	}
}

// ended returns the status of a watch that has ended by an error.
func ended(err error) error {
	if errors.Is(err, stream.ErrClosed) {
		return status.Error(codes.Unavailable, "syncloop is stopping")
	}
	return status.FromContextError(err).Err()
}

// eventOf returns the event of a message, nil if the client is to get none. Sent has the UIDs of the pods that the
// client knows.
func eventOf(m stream.Message[*enginev1.Pod], sent map[string]bool) (*podsv1alpha1.WatchPodsEvent, error) {
	switch m.Kind {
	case stream.KindSynced:
		return &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE}, nil
	case stream.KindSnapshot, stream.KindDelta:
	case stream.KindOpened, stream.KindBookmark, stream.KindUnknown:
		return nil, nil //nolint:nilnil // the client is not told
	}
	known := sent[m.Key]
	switch {
	case m.Removed && !known, isOrphan(m.Value) && !known:
		return nil, nil //nolint:nilnil // the client does not know it
	case m.Removed:
		delete(sent, m.Key)
		return deleted(m.Value)
	case known:
		return &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_MODIFIED, Pod: m.Value.GetPod()}, nil
	}
	sent[m.Key] = true
	return &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_ADDED, Pod: m.Value.GetPod()}, nil
}

// deleted returns the event for a pod that is gone. As in the kubelet, it only says which pod that was.
func deleted(p *enginev1.Pod) (*podsv1alpha1.WatchPodsEvent, error) {
	pod, err := decode(p)
	if err != nil {
		return nil, err
	}
	data, err := (&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
	}).Marshal()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "failed to marshal pod: %v", err)
	}
	return &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_DELETED, Pod: data}, nil
}
