package statusmanager_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
)

// server is a fake API server that has pods by name and applies patches as a real one.
type server struct {
	mu       sync.Mutex
	pods     map[string]*v1.Pod
	version  int
	patches  []string
	deleted  []string
	underWay map[string]int
	// answer is called before each request. It may block, and its error is the error of the request.
	answer func(ctx context.Context, name string) error
	// drop changes a pod after each patch, as a server that does not know all fields.
	drop func(*v1.Pod)
	t    *testing.T
}

func (s *server) begin(ctx context.Context, name string) error {
	s.mu.Lock()
	if s.underWay[name]++; s.underWay[name] > 1 {
		s.t.Errorf("there are %d requests for %s under way", s.underWay[name], name)
	}
	answer := s.answer
	s.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx, name)
}

func (s *server) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay[name]--
}

// PatchStatus implements statusmanager.API.
func (s *server) PatchStatus(ctx context.Context, _, name string, patch []byte) (*v1.Pod, error) {
	defer s.end(name)
	if err := s.begin(ctx, name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.pods[name]
	var precondition v1.Pod
	if err := json.Unmarshal(patch, &precondition.Status); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(patch, &struct{ Metadata *metav1.ObjectMeta }{&precondition.ObjectMeta}); err != nil {
		return nil, err
	}
	if pod == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	if precondition.UID != pod.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, &uidError{})
	}
	before, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, v1.Pod{})
	if err != nil {
		return nil, err
	}
	patched := &v1.Pod{}
	if err := json.Unmarshal(after, patched); err != nil {
		return nil, err
	}
	if s.drop != nil {
		s.drop(patched)
	}
	s.version++
	patched.ResourceVersion = strconv.Itoa(s.version)
	s.pods[name] = patched
	s.patches = append(s.patches, name+" "+string(patched.Status.Phase))
	return patched.DeepCopy(), nil
}

type uidError struct{}

func (*uidError) Error() string {
	return "Precondition failed: UID in precondition: a, UID in object meta: b"
}

// Delete implements statusmanager.API.
func (s *server) Delete(ctx context.Context, _, name string, uid types.UID) error {
	defer s.end(name)
	if err := s.begin(ctx, name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch pod := s.pods[name]; {
	case pod == nil:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	case pod.UID != uid:
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, name, &uidError{})
	}
	delete(s.pods, name)
	s.deleted = append(s.deleted, name)
	return nil
}

// put adds a pod to the API server and returns it as a watch would.
func (s *server) put(pod *v1.Pod) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	pod = pod.DeepCopy()
	pod.ResourceVersion = strconv.Itoa(s.version)
	s.pods[pod.Name] = pod
	return pod.DeepCopy()
}

func (s *server) get(name string) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods[name] == nil {
		return nil
	}
	return s.pods[name].DeepCopy()
}

func (s *server) answers(answer func(ctx context.Context, name string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// count returns the number of patches.
func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.patches)
}

// rig is a Manager with a fake API server in a synctest bubble.
type rig struct {
	*statusmanager.Manager
	api      *server
	registry *prometheus.Registry
}

func run(t *testing.T, test func(t *testing.T, r rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := &server{pods: map[string]*v1.Pod{}, underWay: map[string]int{}, t: t, version: 100}
		registry := prometheus.NewRegistry()
		m := statusmanager.New(statusmanager.Config{
			API: api, Clock: clock.RealClock{}, Tracer: telemetry.Off(), Logger: slog.New(slog.DiscardHandler),
			Metrics: statusmanager.NewMetrics(registry),
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = m.Run(ctx) // returns the error of its context
		}()
		synctest.Wait()
		test(t, rig{m, api, registry})
		stop()
		<-done
	})
}

// pass lets time pass and waits until nothing is left to do.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// pod returns a pod of the API server.
func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}, Status: v1.PodStatus{Phase: v1.PodPending}}
}

// status returns a status with the phase, and with a running container if the phase is Running.
func status(phase v1.PodPhase) v1.PodStatus {
	out := v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{{Name: "c"}}}
	if phase == v1.PodRunning {
		out.ContainerStatuses[0].State.Running = &v1.ContainerStateRunning{}
	}
	return out
}
