package relist_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/podlabels"
)

// world is an in-memory runtime with rules: states only advance, and ids are never reused. It has no events; the
// history sends hints.
type world struct {
	internalapi.RuntimeService // the unused methods

	// boot identifies the boot of the machine.
	boot string

	mu         sync.Mutex
	ids        int
	sandboxes  []*runtimeapi.PodSandboxStatus
	containers []*runtimeapi.ContainerStatus
	// ended has the exit statuses of containers, including removed ones.
	ended map[string]*runtimeapi.ContainerStatus
	// failing is the number of lists of all pods that will fail; hanging is closed to release hanging lists, nil when none
	// hang.
	failing int
	hanging chan struct{}
	// broken and hung are the pods whose inspections fail, and hang until the channel is closed.
	broken map[string]bool
	hung   map[string]chan struct{}
	// inspections counts the inspections of each pod since the last hang.
	inspections map[string]int
}

func newWorld() *world {
	return &world{
		boot:        "boot 1",
		ended:       map[string]*runtimeapi.ContainerStatus{},
		broken:      map[string]bool{},
		hung:        map[string]chan struct{}{},
		inspections: map[string]int{},
	}
}

func (w *world) id(kind string) string {
	w.ids++
	return fmt.Sprint(kind, w.ids)
}

func podLabelsOf(uid string) map[string]string {
	return map[string]string{
		podlabels.PodUID:        uid,
		podlabels.PodName:       "pod-" + uid,
		podlabels.PodNamespace:  "default",
		podlabels.ContainerName: "app",
	}
}

// addSandbox creates a pod, or recreates one, with a new sandbox.
func (w *world) addSandbox(uid string) {
	attempt := 0
	for _, s := range w.sandboxes {
		if s.GetMetadata().GetUid() == uid {
			attempt++
		}
	}
	w.sandboxes = append(w.sandboxes, &runtimeapi.PodSandboxStatus{
		Id:        w.id("s"),
		State:     runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: time.Now().UnixNano(),
		Labels:    podLabelsOf(uid),
		Metadata:  &runtimeapi.PodSandboxMetadata{Uid: uid, Attempt: uint32(attempt)},
		Network:   &runtimeapi.PodSandboxNetworkStatus{Ip: "10.88.0.5"},
	})
}

func (w *world) addContainer(uid string) {
	w.containers = append(w.containers, &runtimeapi.ContainerStatus{
		Id:        w.id("c"),
		State:     runtimeapi.ContainerState_CONTAINER_CREATED,
		CreatedAt: time.Now().UnixNano(),
		Labels:    podLabelsOf(uid),
		Metadata:  &runtimeapi.ContainerMetadata{Name: "app", Attempt: uint32(w.ids)},
	})
}

// advance moves a container to its next state: it starts, or ends.
func (w *world) advance(c *runtimeapi.ContainerStatus) {
	switch c.GetState() {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		c.State, c.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	case runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_UNKNOWN:
		c.State, c.FinishedAt, c.ExitCode, c.Reason = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now().
			UnixNano(),
			int32(w.ids), "Error"
		w.ended[c.GetId()] = c
	case runtimeapi.ContainerState_CONTAINER_EXITED:
	}
}

func (w *world) dropContainer(c *runtimeapi.ContainerStatus) {
	w.containers = slices.DeleteFunc(w.containers, func(other *runtimeapi.ContainerStatus) bool { return other == c })
}

func (w *world) dropPod(uid string) {
	w.sandboxes = slices.DeleteFunc(
		w.sandboxes,
		func(s *runtimeapi.PodSandboxStatus) bool { return s.GetMetadata().GetUid() == uid },
	)
	w.containers = slices.DeleteFunc(
		w.containers,
		func(c *runtimeapi.ContainerStatus) bool { return c.GetLabels()[podlabels.PodUID] == uid },
	)
}

// hang changes the container of each of these pods, and blocks their inspections from now on, until heal.
func (w *world) hang(uids ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.inspections)
	for _, uid := range uids {
		w.hung[uid] = make(chan struct{})
		for _, c := range w.containers {
			if c.GetLabels()[podlabels.PodUID] == uid {
				w.advance(c)
			}
		}
	}
}

// hangAll blocks lists of all pods from now on, until heal.
func (w *world) hangAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hanging = make(chan struct{})
}

// inspected returns the number of inspections of a pod since the last hang.
func (w *world) inspected(uid string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inspections[uid]
}

// release ends the hang of a pod.
func (w *world) release(uid string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.hung[uid])
	delete(w.hung, uid)
}

// heal ends every failure.
func (w *world) heal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing = 0
	if w.hanging != nil {
		close(w.hanging)
	}
	for _, gate := range w.hung {
		close(gate)
	}
	w.hanging, w.broken, w.hung = nil, map[string]bool{}, map[string]chan struct{}{}
}

var errScripted = errors.New("scripted")

// pass lets a list succeed or fail; uid is that of the inspected pod, empty for a list of all pods.
func (w *world) pass(ctx context.Context, uid string) error {
	w.mu.Lock()
	w.inspections[uid]++
	gate, broken := w.hung[uid], w.broken[uid]
	if uid == "" {
		gate, broken = w.hanging, w.failing > 0
		w.failing = max(0, w.failing-1)
	}
	w.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if broken {
		return errScripted
	}
	return nil
}

// ListPodSandbox implements the first call of a Relister, for all pods and for one.
func (w *world) ListPodSandbox(ctx context.Context, f *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	uid := f.GetLabelSelector()[podlabels.PodUID]
	if err := w.pass(ctx, uid); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*runtimeapi.PodSandbox
	for _, s := range w.sandboxes {
		if uid == "" || s.GetMetadata().GetUid() == uid {
			all = append(
				all,
				&runtimeapi.PodSandbox{
					Id:        s.GetId(),
					State:     s.GetState(),
					CreatedAt: s.GetCreatedAt(),
					Labels:    s.GetLabels(),
					Metadata:  s.GetMetadata(),
				},
			)
		}
	}
	return all, nil
}

// ListContainers implements internalapi.RuntimeService.
func (w *world) ListContainers(_ context.Context, f *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	uid := f.GetLabelSelector()[podlabels.PodUID]
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*runtimeapi.Container
	for _, c := range w.containers {
		if uid == "" || c.GetLabels()[podlabels.PodUID] == uid {
			all = append(
				all,
				&runtimeapi.Container{
					Id:        c.GetId(),
					State:     c.GetState(),
					CreatedAt: c.GetCreatedAt(),
					Labels:    c.GetLabels(),
					Metadata:  c.GetMetadata(),
				},
			)
		}
	}
	return all, nil
}

// PodSandboxStatus implements internalapi.RuntimeService.
func (w *world) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sandboxes {
		if s.GetId() == id {
			return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
				Id:        id,
				State:     s.GetState(),
				CreatedAt: s.GetCreatedAt(),
				Labels:    s.GetLabels(),
				Metadata:  s.GetMetadata(),
				Network:   s.GetNetwork(),
			}}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "sandbox "+id)
}

// ContainerStatus implements internalapi.RuntimeService.
func (w *world) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.containers {
		if c.GetId() == id {
			return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
				Id:         id,
				State:      c.GetState(),
				CreatedAt:  c.GetCreatedAt(),
				StartedAt:  c.GetStartedAt(),
				FinishedAt: c.GetFinishedAt(),
				ExitCode:   c.GetExitCode(),
				Reason:     c.GetReason(),
				Labels:     c.GetLabels(),
				Metadata:   c.GetMetadata(),
				Resources:  c.GetResources(),
			}}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "container "+id)
}

// storage is the disk, which outlives the processes.
type storage struct {
	mu   sync.Mutex
	data []byte
	full bool
	// stalled is closed to release the disk; nil when it does not hang.
	stalled chan struct{}
}

func (d *storage) set(full, stalled bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
	switch {
	case stalled && d.stalled == nil:
		d.stalled = make(chan struct{})
	case !stalled && d.stalled != nil:
		close(d.stalled)
		d.stalled = nil
	}
}

// handle is a process' access to the disk, as a journal.File. After killed is closed, the process' writes are lost,
// except perhaps the first half of the write in progress.
type handle struct {
	disk   *storage
	killed chan struct{}
	torn   bool
}

var errDisk = errors.New("no space left on device")

func (h *handle) wait() (killed bool) {
	h.disk.mu.Lock()
	stalled := h.disk.stalled
	h.disk.mu.Unlock()
	if stalled != nil {
		select {
		case <-stalled:
		case <-h.killed:
		}
	}
	select {
	case <-h.killed:
		return true
	default:
		return false
	}
}

func (h *handle) Read() ([]byte, error) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if h.disk.data == nil {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(h.disk.data), nil
}

func (h *handle) Replace(data []byte) error {
	killed := h.wait()
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if killed || h.disk.full {
		return errDisk
	}
	h.disk.data = slices.Clone(data)
	return nil
}

func (h *handle) Append(data []byte) error {
	killed := h.wait()
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	switch {
	case killed && !h.torn:
		return errDisk
	case killed, h.disk.full:
		h.torn = false
		h.disk.data = slices.Concat(h.disk.data, data[:len(data)/2])
		return errDisk
	}
	h.disk.data = slices.Concat(h.disk.data, data)
	return nil
}

func (h *handle) SetAside() (string, error) {
	return "", errors.New("a file that pleg has written cannot be read")
}
func (h *handle) Close() error { return nil }

// diffWorld compares pods with those of the runtime, by what tells whether something has happened to them; told is true
// for what somebody was told of them.
func diffWorld(w *world, pods map[string]*lifecyclev1.PodStatus, published bool) string {
	want, got := map[string]string{}, map[string]string{}
	for _, s := range w.sandboxes {
		want[s.GetId()] = fmt.Sprintf(
			"of %s, ready: %v",
			s.GetMetadata().GetUid(),
			s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
		)
	}
	for _, c := range w.containers {
		want[c.GetId()] = fmt.Sprintf(
			"of %s, %v, exit code %d",
			c.GetLabels()[podlabels.PodUID],
			c.GetState(),
			c.GetExitCode(),
		)
	}
	for uid, pod := range pods {
		for _, s := range pod.GetSandboxes() {
			got[s.GetId()] = fmt.Sprintf("of %s, ready: %v", uid, s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY)
		}
		for _, c := range pod.GetContainers() {
			got[c.GetId()] = fmt.Sprintf(
				"of %s, %v, exit code %d",
				uid,
				strings.Replace(c.GetState().String(), "_STATE", "", 1),
				c.GetExitCode(),
			)
		}
		if len(pod.GetSandboxes())+len(pod.GetContainers()) == 0 {
			got[uid] = "a pod with nothing"
		}
	}
	if published {
		// The creation of a container that was not started is sent with its next change.
		isCreated := func(_, what string) bool { return strings.Contains(what, "CONTAINER_CREATED") }
		maps.DeleteFunc(want, isCreated)
		maps.DeleteFunc(got, isCreated)
	}
	return cmp.Diff(want, got)
}
