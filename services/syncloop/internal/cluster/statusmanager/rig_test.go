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

// server is an API server that has pods by name and applies patches as a real one.
type server struct {
	mu       sync.Mutex
	pods     map[string]*v1.Pod
	version  int
	patches  []string
	deleted  []string
	underWay map[string]int
	// answer is asked before each request; it may wait, and what it returns is what the request fails of.
	answer func(ctx context.Context, name string) error
	// drop is what the server makes of a pod that it has patched.
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

// put has the API server have a pod, and returns it as its watch would bring it.
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

// count returns how many patches there were.
func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.patches)
}

// rig is a Manager that runs before an API server, in a bubble of synctest.
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
			_ = m.Run(ctx) // the end of its context
		}()
		synctest.Wait()
		test(t, rig{m, api, registry})
		stop()
		<-done
	})
}

// pass lets time pass, and whatever is to happen in it.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// pod is a pod of the API server.
func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}, Status: v1.PodStatus{Phase: v1.PodPending}}
}

// status is a status in a phase, with a container that runs when the phase says so.
func status(phase v1.PodPhase) v1.PodStatus {
	out := v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{{Name: "c"}}}
	if phase == v1.PodRunning {
		out.ContainerStatuses[0].State.Running = &v1.ContainerStateRunning{}
	}
	return out
}
