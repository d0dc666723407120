package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// minGraceSeconds is the shortest time between SIGTERM and SIGKILL, even if no grace period is left. Without it SIGTERM
// would be pointless. It is the kubelet's.
const minGraceSeconds = 2

// KillPod stops everything of a pod that runs: it runs the preStop hooks and sends SIGTERM to all containers, sends
// SIGKILL at the end of the grace period, and then stops the sandboxes. It returns when nothing runs, or soon after ctx
// ends with its error. A later call with a shorter grace period continues from there. A preStop hook that has ended is
// not run again; an interrupted one is, within the remaining time.
func (m *Manager) KillPod(
	ctx context.Context,
	pod *v1.Pod,
	status *lifecyclev1.PodStatus,
	gracePeriodSeconds int64,
) error {
	if !podview.AnyAlive(status) {
		return nil
	}
	runtime, err := m.cfg.Runtime()
	if err != nil {
		return err
	}
	return m.stopPod(ctx, m.instrument(runtime), pod, status, gracePeriodSeconds, false)
}

// stopPod kills all containers and stops the ready sandboxes. If replace is true, it also stops the newest sandbox if
// it is not ready, because the sandbox is about to be replaced and its network may still exist.
func (m *Manager) stopPod(
	ctx context.Context,
	rt *tracedRuntime,
	pod *v1.Pod,
	status *lifecyclev1.PodStatus,
	grace int64,
	replace bool,
) (err error) {
	ctx, span := m.phase(ctx, "pod.kill", pod, telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrGracePeriod.Int64(grace))
	}
	var targets []target
	for _, c := range status.GetContainers() {
		if podview.Alive(c) {
			targets = append(targets, m.targetOf(ctx, pod, c))
		}
	}
	if err := m.killInOrder(ctx, rt, pod, status.GetIps(), targets, grace); err != nil {
		return err
	}
	var errs []error
	for i, s := range status.GetSandboxes() { // newest first
		if podview.Ready(s) || replace && i == 0 {
			if err := rt.stopPodSandbox(ctx, s.GetId()); err != nil {
				errs = append(errs, fmt.Errorf("stop sandbox %s of pod %s: %w", s.GetId(), podName(pod), err))
			}
		}
	}
	return errors.Join(errs...)
}

// target is a container to kill.
type target struct {
	id, name string
	spec     *v1.Container // the spec that it was created from, as far as it is known
	sidecar  int           // the position among the sidecars, counted from 1; 0 for other containers
	ordinary bool          // a container of spec.containers; sidecars stop after these
	why      string        // the message of the event; empty for the default message
}

// targetOf returns a container as a target. Its spec is from the pod, or from the container's annotations.
func (m *Manager) targetOf(ctx context.Context, pod *v1.Pod, c *lifecyclev1.Container) target {
	t := target{id: c.GetId(), name: c.GetName()}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == t.name {
			t.spec, t.ordinary = &pod.Spec.Containers[i], true
		}
	}
	for i := range pod.Spec.InitContainers {
		if spec := &pod.Spec.InitContainers[i]; spec.Name == t.name {
			t.spec = spec
			if podset.IsSidecar(spec) {
				t.sidecar = i + 1
			}
		}
	}
	if t.spec == nil {
		t.spec = m.recoverSpec(ctx, c)
	}
	return t
}

// recoverSpec returns the fields of a container's spec that stopping it needs, from its annotations.
func (m *Manager) recoverSpec(ctx context.Context, c *lifecyclev1.Container) *v1.Container {
	recovered, err := podlabels.Recover(c.GetAnnotations())
	if err != nil {
		m.cfg.Logger.WarnContext(ctx, "ignoring annotations of a container that cannot be read",
			telemetry.KeyContainerID, c.GetId(), telemetry.KeyError, err)
	}
	return specOf(c, recovered)
}

func specOf(c *lifecyclev1.Container, recovered podlabels.Recovered) *v1.Container {
	spec := &v1.Container{
		Name: c.GetName(), Image: c.GetImage(), Ports: recovered.Ports,
		TerminationMessagePath:   recovered.TerminationMessagePath,
		TerminationMessagePolicy: recovered.TerminationMessagePolicy,
	}
	if recovered.PreStop != nil {
		spec.Lifecycle = &v1.Lifecycle{PreStop: recovered.PreStop}
	}
	return spec
}

// killInOrder kills containers within one grace period. All stop at once, except sidecars: they stop one after another
// in reverse order, after the ordinary containers have ended. Their preStop hooks do not wait: a proxy, for example,
// learns by its hook that the others are about to end. At the end of the grace period no container waits for its turn
// any more.
func (m *Manager) killInOrder(
	ctx context.Context,
	rt *tracedRuntime,
	pod *v1.Pod,
	ips []string,
	targets []target,
	grace int64,
) error {
	done := make([]chan struct{}, len(targets))
	for i := range targets {
		done[i] = make(chan struct{})
	}
	errs := make([]error, len(targets))
	var running sync.WaitGroup
	for i, t := range targets {
		running.Go(func() {
			defer close(done[i])
			var before []chan struct{}
			for j, other := range targets {
				if t.sidecar > 0 && (other.ordinary || other.sidecar > t.sidecar) {
					before = append(before, done[j])
				}
			}
			errs[i] = m.killContainer(ctx, rt, pod, t, grace, ips, before...)
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (m *Manager) waitForTurn(ctx context.Context, before []chan struct{}, longest time.Duration) error {
	if len(before) == 0 {
		return nil
	}
	timer := m.cfg.Clock.NewTimer(longest)
	defer timer.Stop()
	for _, done := range before {
		select {
		case <-done:
		case <-timer.C():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// killListed kills the containers that must stop while the pod continues.
func (m *Manager) killListed(
	ctx context.Context,
	rt *tracedRuntime,
	pod *v1.Pod,
	status *lifecyclev1.PodStatus,
	kills []decide.Kill,
) error {
	errs := make([]error, len(kills))
	var running sync.WaitGroup
	for i, k := range kills {
		m.cfg.Logger.InfoContext(ctx, "killing a container", telemetry.KeyPod, podName(pod), telemetry.KeyContainer, k.Name,
			telemetry.KeyContainerID, k.ContainerID, telemetry.KeyReason, k.Message)
		at := slices.IndexFunc(status.GetContainers(), func(c *lifecyclev1.Container) bool {
			return c.GetId() == k.ContainerID
		})
		if at < 0 {
			continue
		}
		t := m.targetOf(ctx, pod, status.GetContainers()[at])
		t.why = k.Message
		if k.Why == decide.SpecChanged || k.Why == decide.Resized {
			m.noteReplaced(ctx, pod, t)
		}
		running.Go(func() { errs[i] = m.killContainer(ctx, rt, pod, t, graceFor(pod, t.spec, k.Why), status.GetIps()) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// noteReplaced records that a container is stopped to be replaced, so that its end is not taken for the end of the pod.
func (m *Manager) noteReplaced(ctx context.Context, pod *v1.Pod, t target) {
	if err := m.cfg.Endings.NoteReplaced(pod.UID, t.id); err != nil {
		m.cfg.Logger.WarnContext(ctx, "cannot record that a container is stopped to be replaced: if syncloop is killed before it starts again, the restart policy decides",
			telemetry.KeyPod, podName(pod), telemetry.KeyContainerID, t.id, telemetry.KeyError, err)
	}
}

// graceFor returns the grace period, in seconds, of a container that is killed while its pod continues. A probe may
// have its own.
func graceFor(pod *v1.Pod, spec *v1.Container, why decide.Why) int64 {
	var probe *v1.Probe
	switch why {
	case decide.LivenessFailed:
		probe = spec.LivenessProbe
	case decide.StartupFailed:
		probe = spec.StartupProbe
	case decide.AllRestart:
		return 0
	case decide.SpecChanged, decide.StateUnknown, decide.NotWanted, decide.Resized:
	}
	if probe != nil && probe.TerminationGracePeriodSeconds != nil && pod.DeletionGracePeriodSeconds == nil {
		return *probe.TerminationGracePeriodSeconds
	}
	return graceOf(pod)
}

// killContainer runs a container's preStop hook, waits until the containers in before have ended, and stops the
// container, all within the grace period.
func (m *Manager) killContainer(
	ctx context.Context,
	rt *tracedRuntime,
	pod *v1.Pod,
	t target,
	grace int64,
	ips []string,
	before ...chan struct{},
) error {
	m.cfg.Events.Normal(ctx, pod, t.name, eventKilling, cmp.Or(t.why, "Stopping container "+t.name))
	hooked := t.spec.Lifecycle != nil && t.spec.Lifecycle.PreStop != nil
	if hooked && grace > 0 && !m.cfg.Endings.PreStopped(pod.UID, t.id) {
		took, end := m.preStop(ctx, rt, pod, t, grace, ips)
		defer end()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		grace -= int64(took.Seconds())
	}
	waiting := m.cfg.Clock.Now()
	if err := m.waitForTurn(ctx, before, time.Duration(max(grace, 0))*time.Second); err != nil {
		return err
	}
	grace -= int64(m.cfg.Clock.Since(waiting).Seconds())
	m.cfg.Logger.InfoContext(ctx, "stopping a container", telemetry.KeyPod, podName(pod), telemetry.KeyContainer, t.name,
		telemetry.KeyContainerID, t.id, telemetry.KeyGracePeriod, max(grace, minGraceSeconds))
	if err := rt.stopContainer(ctx, t.id, max(grace, minGraceSeconds)); err != nil {
		return fmt.Errorf("stop container %q (%s) of pod %s: %w", t.name, t.id, podName(pod), err)
	}
	return nil
}

// preStop runs the hook and returns when it has ended or the grace period is over, with the time that it took. A hook
// that still runs then continues while the container is stopped, as in the kubelet; end cancels it and must be called.
// A failed hook delays nothing. A hook that was interrupted, because ctx has ended or the runtime is unavailable,
// counts neither as failed nor as done: it runs again with the next kill of the container.
func (m *Manager) preStop(
	ctx context.Context,
	rt *tracedRuntime,
	pod *v1.Pod,
	t target,
	grace int64,
	ips []string,
) (took time.Duration, end func()) {
	begun := m.cfg.Clock.Now()
	hookCtx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	end = func() {
		cancel()
		running.Wait() // every hook respects its context
	}
	ended := make(chan error, 1)
	running.Go(func() {
		ended <- m.runHook(hookCtx, rt, hook{
			name: "preStop", handler: t.spec.Lifecycle.PreStop, pod: pod, container: t.name, ports: t.spec.Ports, containerID: t.id,
			ips: func(context.Context) ([]string, error) { return ips, nil },
		})
	})
	timer := m.cfg.Clock.NewTimer(time.Duration(grace) * time.Second)
	defer timer.Stop()
	var err error
	select {
	case err = <-ended:
	case <-timer.C():
		err = fmt.Errorf("did not end within the grace period of %d s", grace)
	}
	took = m.cfg.Clock.Since(begun)
	if err != nil && (ctx.Err() != nil || isUnavailable(err)) {
		return took, end
	}
	if err != nil {
		m.warn(ctx, pod, t.name, eventPreStop, "PreStopHook failed") // no cause: it may hold a secret of the container
		m.cfg.Logger.WarnContext(ctx, "preStop hook failed", telemetry.KeyPod, podName(pod), telemetry.KeyContainer, t.name, telemetry.KeyError, err)
	}
	if err := m.cfg.Endings.NotePreStop(pod.UID, t.id); err != nil {
		m.cfg.Logger.WarnContext(ctx, "cannot record that a preStop hook has ended: if syncloop is killed before the container has ended, the hook runs again",
			telemetry.KeyPod, podName(pod), telemetry.KeyContainerID, t.id, telemetry.KeyError, err)
	}
	return took, end
}

// isUnavailable reports whether a call failed because the runtime is unavailable.
func isUnavailable(err error) bool {
	return errors.As(err, new(*cri.NotConnectedError)) || status.Code(err) == codes.Unavailable
}

// forgetPod drops the records of a removed pod.
func (m *Manager) forgetPod(pod *v1.Pod) error {
	m.images.Forget(pod.UID)
	return m.cfg.Endings.Forget(pod.UID)
}
