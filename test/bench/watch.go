package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// watcher follows the runtime's events, for nodes and for bare calls.
type watcher struct {
	stop context.CancelFunc
	done chan error

	mu sync.Mutex
	// stopped has the containers whose end was reported.
	stopped map[string]bool
	// ofPod has the containers of a pod, by its name, whose start was reported.
	ofPod   map[string]map[string]bool
	changed chan struct{}
}

// watch subscribes to the events. Close ends it.
func watch(ctx context.Context, runtime internalapi.RuntimeService) *watcher {
	ctx, stop := context.WithCancel(klog.NewContext(ctx, logr.Discard())) // the client logs its end
	w := &watcher{
		stop: stop, done: make(chan error, 1), changed: make(chan struct{}),
		stopped: map[string]bool{}, ofPod: map[string]map[string]bool{},
	}
	events := make(chan *runtimev1.ContainerEventResponse)
	ended := make(chan error, 1)
	connected := make(chan struct{})
	go func() {
		ended <- runtime.GetContainerEvents(ctx, events,
			func(runtimev1.RuntimeService_GetContainerEventsClient) { close(connected) })
	}()
	go func() {
		for {
			select {
			case e := <-events:
				w.note(e)
			case err := <-ended:
				w.done <- err
				return
			}
		}
	}()
	select {
	case <-connected:
	case <-ctx.Done():
	}
	return w
}

func (w *watcher) close() error {
	w.stop()
	if err := <-w.done; err != nil && status.Code(err) != codes.Canceled && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("follow the runtime's events: %w", err)
	}
	return nil
}

func (w *watcher) note(e *runtimev1.ContainerEventResponse) {
	id, sandbox := e.GetContainerId(), e.GetPodSandboxStatus()
	pod := sandbox.GetMetadata().GetName()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e.GetContainerEventType() {
	case runtimev1.ContainerEventType_CONTAINER_STARTED_EVENT:
		if w.ofPod[pod] == nil {
			w.ofPod[pod] = map[string]bool{}
		}
		if id != sandbox.GetId() {
			w.ofPod[pod][id] = true
		}
	case runtimev1.ContainerEventType_CONTAINER_STOPPED_EVENT:
		w.stopped[id] = true
	case runtimev1.ContainerEventType_CONTAINER_CREATED_EVENT, runtimev1.ContainerEventType_CONTAINER_DELETED_EVENT:
		return
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// until waits until look, which is called with the lock held, returns true.
func (w *watcher) until(ctx context.Context, look func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	for {
		w.mu.Lock()
		found := look()
		changed := w.changed
		w.mu.Unlock()
		if found {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// end waits for the end of a container.
func (w *watcher) end(ctx context.Context, container string) error {
	return w.until(ctx, func() bool { return w.stopped[container] })
}

// start waits for the start of a container of a pod that is not the one named.
func (w *watcher) start(ctx context.Context, pod, except string) error {
	err := w.until(ctx, func() bool {
		for id := range w.ofPod[pod] {
			if id != except {
				return true
			}
		}
		return false
	})
	if err != nil {
		return fmt.Errorf("wait for the start of a container of pod %s: %w", pod, err)
	}
	return nil
}

// killProcess kills the program of a container, as a crash would end it.
func killProcess(ctx context.Context, runtime internalapi.RuntimeService, container string) error {
	status, err := runtime.ContainerStatus(ctx, container, true)
	if err != nil {
		return fmt.Errorf("get the status of container %s: %w", container, err)
	}
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(status.GetInfo()["info"]), &info); err != nil || info.PID <= 1 {
		return fmt.Errorf("container %s: the runtime does not report its process id (%d): %w", container, info.PID, err)
	}
	return syscall.Kill(info.PID, syscall.SIGKILL)
}
