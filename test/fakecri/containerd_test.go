package fakecri_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/test/eventually"
	"github.com/quartet-node/quartet/test/fakecri"
	"github.com/quartet-node/quartet/test/harness"
)

// story is the transcript of a runtime's actions and answers, for the comparison of two runtimes.
type story struct {
	t       *testing.T
	ctx     context.Context //nolint:containedctx // the test's
	runtime internalapi.RuntimeService
	lines   []string

	mu     sync.Mutex
	names  map[string]string
	events map[string][]string
}

func (s *story) logf(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// call records the result of a call.
func (s *story) call(what string, err error) {
	s.logf("%s: %v", what, status.Code(err))
}

// name assigns a name to an id.
func (s *story) name(id, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[id] = name
	return id
}

// hear records the kind of an event.
func (s *story) hear(e *runtimeapi.ContainerEventResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"),
		"_EVENT"))
	s.events[e.GetContainerId()] = append(s.events[e.GetContainerId()], kind)
}

// heard waits until an event of a kind has arrived for an id.
func (s *story) await(id, kind string) {
	s.t.Helper()
	eventually.That(s.t, kind+" of "+id, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.events[id], kind)
	})
}

// look records the state of a sandbox and of a container.
func (s *story) look(sandbox, container string) {
	s.t.Helper()
	if resp, err := s.runtime.PodSandboxStatus(s.ctx, sandbox, false); err != nil {
		s.call("status of the sandbox", err)
	} else {
		st := resp.GetStatus()
		s.logf("sandbox %v, attempt %d, address %t", st.GetState(), st.GetMetadata().GetAttempt(), st.GetNetwork().GetIp() != "")
	}
	if resp, err := s.runtime.ContainerStatus(s.ctx, container, false); err != nil {
		s.call("status of the container", err)
	} else {
		st := resp.GetStatus()
		s.logf("container %v, code %d, reason %q, times: created %t, started %t, ended %t", st.GetState(), st.GetExitCode(), st.GetReason(),
			st.GetCreatedAt() > 0, st.GetStartedAt() > 0, st.GetFinishedAt() > 0)
	}
	state := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	running, err := s.runtime.ListContainers(s.ctx, &runtimeapi.ContainerFilter{State: state})
	if err != nil {
		s.t.Fatal(err)
	}
	all, err := s.runtime.ListContainers(s.ctx,
		&runtimeapi.ContainerFilter{LabelSelector: map[string]string{"app": "story"}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.logf("%d of %d containers run", len(running), len(all))
}

// play takes a runtime through the life of a pod. crash waits until the started container has exited by itself with
// code 3.
func (s *story) play(image string, crash func(id string)) {
	config := sandboxConfig("story", 0)
	config.Hostname, config.Linux = "story", &runtimeapi.LinuxPodSandboxConfig{}
	sandbox, err := s.runtime.RunPodSandbox(s.ctx, config, "")
	if err != nil {
		s.t.Fatal(err)
	}
	s.name(sandbox, "sandbox")
	_, err = s.runtime.RunPodSandbox(s.ctx, config, "")
	s.logf("a sandbox whose name is taken is refused: %t", err != nil)
	create := func(name string, attempt uint32, args ...string) (string, error) {
		return s.runtime.CreateContainer(s.ctx, sandbox, &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}, Image: &runtimeapi.ImageSpec{Image: image},
			Args:   args,
			Labels: map[string]string{"app": "story"}, Linux: &runtimeapi.LinuxContainerConfig{},
		}, config)
	}
	made := func(name string, args ...string) string {
		id, err := create(name, 0, args...)
		if err != nil {
			s.t.Fatal(err)
		}
		return s.name(id, name)
	}
	killed := made("killed", "sleep", "-ignore-term")
	s.look(sandbox, killed)
	_, err = create("killed", 0, "sleep")
	s.logf("a container whose name is taken is refused: %t", err != nil)
	s.call("start", s.runtime.StartContainer(s.ctx, killed))
	s.look(sandbox, killed)
	s.logf("a second start is refused: %t", s.runtime.StartContainer(s.ctx, killed) != nil)
	s.call("stop without a grace period", s.runtime.StopContainer(s.ctx, killed, 0))
	s.await(killed, "stopped")
	s.look(sandbox, killed)
	s.call("a second stop", s.runtime.StopContainer(s.ctx, killed, 0))

	crashed := made("crashed", "crash", "-after", "0s", "-code", "3")
	s.call("start", s.runtime.StartContainer(s.ctx, crashed))
	crash(crashed)
	s.await(crashed, "stopped")
	s.look(sandbox, crashed)
	s.call("removal", s.runtime.RemoveContainer(s.ctx, crashed))
	s.look(sandbox, crashed)
	s.call("a second removal", s.runtime.RemoveContainer(s.ctx, crashed))
	s.call("stop of what is gone", s.runtime.StopContainer(s.ctx, crashed, 0))

	left := made("left", "sleep")
	s.call("start", s.runtime.StartContainer(s.ctx, left))
	s.call("stop of the sandbox", s.runtime.StopPodSandbox(s.ctx, sandbox))
	s.await(sandbox, "stopped")
	s.look(sandbox, left)
	_, err = create("late", 0, "sleep")
	s.logf("a container in a sandbox that is stopped is refused: %t", err != nil)
	s.call("removal of the sandbox", s.runtime.RemovePodSandbox(s.ctx, sandbox))
	s.await(sandbox, "deleted")
	s.look(sandbox, left)
	s.call("a second stop of the sandbox", s.runtime.StopPodSandbox(s.ctx, sandbox))
	s.call("a second removal of the sandbox", s.runtime.RemovePodSandbox(s.ctx, sandbox))
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, kinds := range s.events {
		s.logf("events of %s: %v", s.names[id], kinds)
	}
	slices.Sort(s.lines[len(s.lines)-len(s.events):])
}

// tellStory plays the story with a runtime, and returns its lines.
func runStory(t *testing.T, endpoint, image string, crash func(id string)) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(cri.Quiet(t.Context()), time.Minute)
	defer cancel()
	c := harness.ConnectCRI(ctx, t, endpoint)
	s := &story{t: t, ctx: ctx, runtime: c.Runtime, names: map[string]string{}, events: map[string][]string{}}
	listening, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Client.Events(listening, func() {}, s.hear) // it ends with the context
	}()
	s.play(image, crash)
	stop()
	<-ended
	return s.lines
}

// The services' tests rely on the fake, so it must behave as containerd does: the same calls have the same answers,
// states and events.
func TestTheFakeDoesWhatContainerdDoes(t *testing.T) {
	containerd := harness.StartContainerd(t)
	want := runStory(t, containerd.Endpoint, harness.HelloImage, func(string) {})
	fake := fakecri.New(t)
	fake.AddImage(harness.HelloImage, 1)
	got := runStory(t, fake.Endpoint(), harness.HelloImage, func(id string) { fake.Exit(id, 3) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the fake tells another story (-containerd +fake):\n%s", diff)
	}
}
