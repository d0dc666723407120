package transcripts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/mount-utils"

	"github.com/quartet-node/quartet/test/fakecri"
)

// The durations of calls, similar to those of containerd on a small machine. They differ so that the order of events
// that are close in time is stable.
const (
	takesSandbox = 203 * time.Millisecond
	takesPull    = 1501 * time.Millisecond
	takesCreate  = 23 * time.Millisecond
	takesStart   = 31 * time.Millisecond
	takesStop    = 11 * time.Millisecond
	takesRemove  = 7 * time.Millisecond
	takesUpdate  = 5 * time.Millisecond
)

// machine is the state that survives syncloop: the container runtime and the mounts.
type machine struct {
	story *story
	fake  *fakecri.Server
	// changed holds one signal: pleg must inspect the runtime.
	changed chan struct{}
	// mounted has the mounts, and brokenVolume the name of a volume whose setup fails; nil if there is none.
	mounted      *mount.FakeMounter
	brokenVolume atomic.Pointer[string]
	// away is true while the runtime answers no call.
	away atomic.Bool
	// caller is the done channel of the calling process. When it is closed, calls in progress are canceled.
	caller atomic.Pointer[<-chan struct{}]
}

// call writes a line for a call that changes the runtime, waits for its duration, and executes it.
func (m *machine) call(ctx context.Context, uid, what string, takes time.Duration, do func() error) error {
	m.story.line(workOf(uid), "runtime", what)
	err := m.answer(ctx, takes)
	if err == nil {
		err = do()
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err() // the process is gone, or has canceled the call
	}
	if err != nil {
		m.story.line(workOf(uid), "runtime", fmt.Sprintf("%s fails: %s", firstWord(what), status.Convert(err).Message()))
	}
	m.hint()
	return err
}

func (m *machine) answer(ctx context.Context, takes time.Duration) error {
	if m.away.Load() {
		return status.Error(codes.Unavailable, "the container runtime does not answer")
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-*m.caller.Load():
		return context.Canceled
	case <-time.After(takes):
		return nil
	}
}

// hint notifies pleg of a possible change.
func (m *machine) hint() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// container returns the name of a container in the stories: its name and attempt, and the UID of its pod.
func (m *machine) container(id string) (uid, name string) {
	for _, c := range m.fake.Containers() {
		if c.ID == id {
			return c.PodUID, containerName(c.Config.GetMetadata()) + " of " + c.PodUID
		}
	}
	return "", id
}

func containerName(meta *runtimeapi.ContainerMetadata) string {
	if meta.GetAttempt() == 0 {
		return meta.GetName()
	}
	return fmt.Sprintf("%s (attempt %d)", meta.GetName(), meta.GetAttempt())
}

// sandbox returns the UID of a sandbox's pod, which is its name in the stories.
func (m *machine) sandbox(id string) string {
	answer, err := m.fake.PodSandboxStatus(context.Background(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return id
	}
	return answer.GetStatus().GetMetadata().GetUid()
}

// runtimeService is the machine as the executor sees it. Calls that no story needs panic.
type runtimeService struct {
	internalapi.RuntimeService
	m *machine
}

func (r runtimeService) RunPodSandbox(
	ctx context.Context, config *runtimeapi.PodSandboxConfig, handler string,
) (id string, err error) {
	uid := config.GetMetadata().GetUid()
	err = r.m.call(ctx, uid, "RunPodSandbox "+uid, takesSandbox, func() error {
		answer, err := r.m.fake.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		id = answer.GetPodSandboxId()
		return err
	})
	return id, err
}

func (r runtimeService) StopPodSandbox(ctx context.Context, id string) error {
	uid := r.m.sandbox(id)
	return r.m.call(ctx, uid, "StopPodSandbox "+uid, takesStop, func() error {
		_, err := r.m.fake.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func (r runtimeService) RemovePodSandbox(ctx context.Context, id string) error {
	uid := r.m.sandbox(id)
	return r.m.call(ctx, uid, "RemovePodSandbox "+uid, takesRemove, func() error {
		_, err := r.m.fake.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
}

func (r runtimeService) PodSandboxStatus(
	ctx context.Context, id string, _ bool,
) (*runtimeapi.PodSandboxStatusResponse, error) {
	if err := r.m.answer(ctx, 0); err != nil {
		return nil, err
	}
	return r.m.fake.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
}

func (r runtimeService) CreateContainer(
	ctx context.Context, sandboxID string, config *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig,
) (id string, err error) {
	uid := r.m.sandbox(sandboxID)
	err = r.m.call(ctx, uid, fmt.Sprintf("CreateContainer %s of %s, image %s", containerName(config.GetMetadata()), uid, config.GetImage().GetUserSpecifiedImage()), takesCreate, func() error {
		answer, err := r.m.fake.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: sandboxID, Config: config, SandboxConfig: sandbox,
		})
		id = answer.GetContainerId()
		return err
	})
	return id, err
}

func (r runtimeService) StartContainer(ctx context.Context, id string) error {
	uid, name := r.m.container(id)
	return r.m.call(ctx, uid, "StartContainer "+name, takesStart, func() error {
		_, err := r.m.fake.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		return err
	})
}

func (r runtimeService) StopContainer(ctx context.Context, id string, timeout int64) error {
	uid, name := r.m.container(id)
	return r.m.call(ctx, uid, fmt.Sprintf("StopContainer %s: SIGTERM, and SIGKILL after %d s", name, timeout), takesStop, func() error {
		_, err := r.m.fake.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: timeout})
		return err
	})
}

func (r runtimeService) RemoveContainer(ctx context.Context, id string) error {
	uid, name := r.m.container(id)
	return r.m.call(ctx, uid, "RemoveContainer "+name, takesRemove, func() error {
		_, err := r.m.fake.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		return err
	})
}

func (r runtimeService) UpdateContainerResources(
	ctx context.Context, id string, to *runtimeapi.ContainerResources,
) error {
	uid, name := r.m.container(id)
	what := fmt.Sprintf("UpdateContainerResources %s: %d shares of cpu", name, to.GetLinux().GetCpuShares())
	return r.m.call(ctx, uid, what, takesUpdate, func() error {
		_, err := r.m.fake.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: id, Linux: to.GetLinux(),
		})
		return err
	})
}

func (r runtimeService) ContainerStatus(
	ctx context.Context, id string, _ bool,
) (*runtimeapi.ContainerStatusResponse, error) {
	if err := r.m.answer(ctx, 0); err != nil {
		return nil, err
	}
	return r.m.fake.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
}

// imageService is the images of the machine.
type imageService struct {
	internalapi.ImageManagerService
	m *machine
}

func (i imageService) ImageStatus(
	ctx context.Context, image *runtimeapi.ImageSpec, _ bool,
) (*runtimeapi.ImageStatusResponse, error) {
	if err := i.m.answer(ctx, 0); err != nil {
		return nil, err
	}
	return i.m.fake.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: image})
}

func (i imageService) PullImage(
	ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig,
) (ref string, err error) {
	err = i.m.call(ctx, sandbox.GetMetadata().GetUid(), "PullImage "+image.GetImage(), takesPull, func() error {
		answer, err := i.m.fake.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image, Auth: auth, SandboxConfig: sandbox})
		ref = answer.GetImageRef()
		return err
	})
	return ref, err
}
