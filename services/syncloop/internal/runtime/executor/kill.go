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

// minGraceSeconds is the time that a container gets to end by itself even when none is left: SIGTERM would be pointless
// without. The kubelet's number.
const minGraceSeconds = 2

// KillPod ends everything of a pod that runs: preStop hooks and SIGTERM for all containers, SIGKILL at the end of the grace
// period, then the sandboxes. It returns when nothing runs, or with the error of ctx soon after that ends: calling it again
// with a shorter grace period then goes on from where it was. A preStop hook that has ended is not run again; one that was
// interrupted is, within the time that is left.
func (m *Manager) KillPod(ctx context.Context, pod *v1.Pod, status *lifecyclev1.PodStatus, gracePeriodSeconds int64) error {
	if !podview.AnyAlive(status) {
		return nil
	}
	runtime, err := m.cfg.Runtime()
	if err != nil {
		return err
	}
	return m.stopPod(ctx, m.instrument(runtime), pod, status, gracePeriodSeconds, false)
}

// stopPod kills all containers and stops the sandboxes that are ready. With again the newest one is stopped even when it is
// not ready, for it is about to be replaced, and its network may still be there.
func (m *Manager) stopPod(ctx context.Context, rt *tracedRuntime, pod *v1.Pod, status *lifecyclev1.PodStatus, grace int64, again bool) (err error) {
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
		if podview.Ready(s) || again && i == 0 {
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
	spec     *v1.Container // what it was made from, as far as it is known
	sidecar  int           // its place among the sidecars, counted from 1; 0 for other containers
	ordinary bool          // a container of spec.containers: the sidecars are there for it
	why      string        // what its event says; empty when there is nothing more to say than that it is stopped
}

// targetOf finds what is needed to kill a container: its spec from the pod, or else from its annotations.
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

// recoverSpec makes the part of a container's spec that its end needs from its annotations.
func (m *Manager) recoverSpec(ctx context.Context, c *lifecyclev1.Container) *v1.Container {
	recovered, err := podlabels.Recover(c.GetAnnotations())
	if err != nil {
		m.cfg.Logger.WarnContext(ctx, "annotations of a container cannot be read; what they say is left out",
			telemetry.KeyContainerID, c.GetId(), telemetry.KeyError, err)
	}
	return specOf(c, recovered)
}

func specOf(c *lifecyclev1.Container, recovered podlabels.Recovered) *v1.Container {
	spec := &v1.Container{
		Name: c.GetName(), Image: c.GetImage(), Ports: recovered.Ports,
		TerminationMessagePath: recovered.TerminationMessagePath, TerminationMessagePolicy: recovered.TerminationMessagePolicy,
	}
	if recovered.PreStop != nil {
		spec.Lifecycle = &v1.Lifecycle{PreStop: recovered.PreStop}
	}
	return spec
}

// killInOrder kills containers within one grace period: all at once, but sidecars are stopped one after another, the last one
// first, when the ordinary ones have ended. Their preStop hooks do not wait for that: a proxy, say, learns by its hook that
// the others are about to end. When the grace period is over, nobody waits for his turn any more.
func (m *Manager) killInOrder(ctx context.Context, rt *tracedRuntime, pod *v1.Pod, ips []string, targets []target, grace int64) error {
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

// killListed kills containers that are not to run on while the pod does.
func (m *Manager) killListed(ctx context.Context, rt *tracedRuntime, pod *v1.Pod, status *lifecyclev1.PodStatus, kills []decide.Kill) error {
	errs := make([]error, len(kills))
	var running sync.WaitGroup
	for i, k := range kills {
		m.cfg.Logger.InfoContext(ctx, "killing a container", telemetry.KeyPod, podName(pod), telemetry.KeyContainer, k.Name,
			telemetry.KeyContainerID, k.ContainerID, telemetry.KeyReason, k.Message)
		at := slices.IndexFunc(status.GetContainers(), func(c *lifecyclev1.Container) bool { return c.GetId() == k.ContainerID })
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

// noteReplaced notes that a container is stopped because another one takes its place, so that its end is not taken for the pod's.
func (m *Manager) noteReplaced(ctx context.Context, pod *v1.Pod, t target) {
	if err := m.cfg.Endings.NoteReplaced(pod.UID, t.id); err != nil {
		m.cfg.Logger.WarnContext(ctx, "should syncloop be killed before the container is started again, the next one goes by the restart policy",
			telemetry.KeyPod, podName(pod), telemetry.KeyContainerID, t.id, telemetry.KeyError, err)
	}
}

// graceFor is the grace period of one container that is killed while its pod goes on, in seconds: a probe may have its
// own.
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

// killContainer runs a container's preStop hook, waits for those that are to end before it, and ends it, all within the grace
// period.
func (m *Manager) killContainer(ctx context.Context, rt *tracedRuntime, pod *v1.Pod, t target, grace int64, ips []string, before ...chan struct{}) error {
	m.cfg.Events.Normal(ctx, pod, t.name, eventKilling, cmp.Or(t.why, "Stopping container "+t.name))
	if t.spec.Lifecycle != nil && t.spec.Lifecycle.PreStop != nil && grace > 0 && !m.cfg.Endings.PreStopped(pod.UID, t.id) {
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

// preStop runs the hook, and returns when it has ended or the grace period is over. It returns how long that took. A hook that
// still runs then goes on while the container is stopped, as a kubelet's does; end ends it and must be called. The failure of a
// hook holds up nothing. A hook that was interrupted, because ctx has ended or the runtime is away, has not failed and is not
// done: it is run again when the container is killed again.
func (m *Manager) preStop(ctx context.Context, rt *tracedRuntime, pod *v1.Pod, t target, grace int64, ips []string) (took time.Duration, end func()) {
	begun := m.cfg.Clock.Now()
	hookCtx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	end = func() {
		cancel()
		running.Wait() // every hook honors its context
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
		err = fmt.Errorf("not ended within the grace period of %d s", grace)
	}
	took = m.cfg.Clock.Since(begun)
	if err != nil && (ctx.Err() != nil || isAway(err)) {
		return took, end
	}
	if err != nil {
		m.warn(ctx, pod, t.name, eventPreStop, "PreStopHook failed") // not why: that may have a secret of the container's
		m.cfg.Logger.WarnContext(ctx, "preStop hook failed", telemetry.KeyPod, podName(pod), telemetry.KeyContainer, t.name, telemetry.KeyError, err)
	}
	if err := m.cfg.Endings.NotePreStop(pod.UID, t.id); err != nil {
		m.cfg.Logger.WarnContext(ctx, "should syncloop be killed before the container has ended, the next one runs the preStop hook again",
			telemetry.KeyPod, podName(pod), telemetry.KeyContainerID, t.id, telemetry.KeyError, err)
	}
	return took, end
}

// isAway tells whether a call failed because nobody answered it: it says nothing about what was asked for.
func isAway(err error) bool {
	return errors.As(err, new(*cri.NotConnectedError)) || status.Code(err) == codes.Unavailable
}

// forgetPod drops what is remembered of a pod that is gone.
func (m *Manager) forgetPod(pod *v1.Pod) error {
	m.images.Forget(pod.UID)
	return m.cfg.Endings.Forget(pod.UID)
}
