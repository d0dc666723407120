package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// logDirMode lets log collectors that are not root read the logs, as the kubelet does.
const logDirMode = 0o755

// startError is the error of a container that did not start, with the reason in the pod's status.
type startError struct {
	reason string
	err    error
	// container is the ID of the created container; empty if it was not created.
	container string
}

func (e *startError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *startError) Unwrap() error { return e.err }

// ErrorType returns the error.type of the failed span.
func (e *startError) ErrorType() string { return e.reason }

// startContainers starts the containers in order. It prepares all of them concurrently (image, creation), because
// containers cannot observe the preparation of others. Each container is started when the one before has started and
// its postStart hook has ended. A container that fails does not stop the others, except an init container: it stops
// those after it.
func (s *podSync) startContainers(ctx context.Context) error {
	starts := s.actions.Start
	s.findPullSecrets(ctx)
	prepared := make([]chan preparation, len(starts))
	var running sync.WaitGroup
	defer running.Wait()
	for i := range starts {
		prepared[i] = make(chan preparation, 1)
		if i == 0 && len(starts) == 1 {
			prepared[0] <- s.prepare(ctx, starts[0]) // the common case of one container needs no goroutine
			break
		}
		running.Go(func() { prepared[i] <- s.prepare(ctx, starts[i]) })
	}
	var errs []error
	for i, start := range starts {
		ready := <-prepared[i]
		err := ready.err
		if err == nil {
			err = s.start(ctx, start, ready.id)
		}
		if err == nil {
			continue
		}
		if err := s.failed(ctx, start, err); err != nil {
			errs = append(errs, err)
		}
		if start.Kind == decide.Init {
			break
		}
	}
	return errors.Join(errs...)
}

// failed records why a container did not start. It returns the error if the caller decides about the retry.
func (s *podSync) failed(ctx context.Context, start decide.Start, err error) error {
	name := start.Container.Name
	var image *images.Error
	if errors.As(err, &image) {
		s.m.cfg.Metrics.containerFailed(start.Kind, image.Reason)
		s.reason(name, image.Reason, image.Message)
		s.retryAfter(image.RetryAfter)
		if image.Reason == images.ReasonPullBackOff {
			return nil
		}
	} else if failure := (*startError)(nil); errors.As(err, &failure) {
		message := callError(failure.err)
		s.m.cfg.Metrics.containerFailed(start.Kind, failure.reason)
		s.reason(name, failure.reason, message)
		if failure.reason != reasonPostStart { // the event of a failed hook is recorded already
			s.m.warn(ctx, s.pod, name, eventFailed, withoutID("Error: "+message, failure.container, name))
		}
	}
	// The caller logs the error, too, and only once however often the start is retried.
	s.m.cfg.Logger.DebugContext(ctx, "a container did not start", telemetry.KeyPod, podName(s.pod), telemetry.KeyContainer, name, telemetry.KeyError, err)
	return fmt.Errorf("container %q of pod %s: %w", name, podName(s.pod), err)
}

// preparation is a created container, or the error of its creation.
type preparation struct {
	id  string
	err error
}

// prepare pulls the image and creates the container.
func (s *podSync) prepare(ctx context.Context, start decide.Start) preparation {
	s.m.cfg.Metrics.containerBegun(start.Kind)
	image, err := s.image(ctx, start.Container)
	if err != nil {
		return preparation{err: err}
	}
	volumes, err := s.imageVolumesOf(ctx, start.Container)
	if err != nil {
		return preparation{err: err}
	}
	id, err := s.create(ctx, start, image, volumes)
	return preparation{id: id, err: err}
}

// image pulls a container's image if it is not present.
func (s *podSync) image(ctx context.Context, c *v1.Container) (image images.Image, err error) {
	ctx, span := s.m.phase(ctx, "image", s.pod, telemetry.Subject{Container: c.Name, Image: c.Image})
	defer func() { telemetry.End(span, err) }()
	defer s.timePhase(phases.Image, c.Name)(&err)
	if err := s.pullSecrets.err; err != nil {
		return images.Image{}, &startError{reason: reasonCreateConfig, err: err}
	}
	return s.m.images.Ensure(ctx, images.Request{
		Pod: s.pod, Container: c.Name, Image: c.Image, Policy: c.ImagePullPolicy,
		Secrets: s.pullSecrets.found, Sandbox: s.sandbox.config,
	})
}

// create creates a container and returns its ID.
func (s *podSync) create(
	ctx context.Context,
	start decide.Start,
	image images.Image,
	volumes map[string]*runtimeapi.ImageSpec,
) (id string, err error) {
	c := start.Container
	ctx, span := s.m.phase(ctx, "container.create", s.pod, telemetry.Subject{Container: c.Name, Image: c.Image})
	defer func() { telemetry.End(span, err) }()
	defer s.timePhase(phases.Create, c.Name)(&err)
	if err := s.unlisted[c.Name]; err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	restart := start.Restart
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrRestartCount.Int(restart.Count))
		// A link to the previous start of the container, even if the trace of its end is lost.
		telemetry.LinkTo(span, podview.Latest(s.observed, c.Name).GetAnnotations()[telemetry.AnnotationTraceparent])
	}
	ips, err := s.sandbox.ips(ctx)
	if err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	target, err := s.targetOf(start)
	if err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	services, err := s.serviceVariables(ctx)
	if err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	inputs := containerspec.Inputs{
		Services: services, Restart: restart, ImageRef: image.Ref, ImageUser: image.User, PodIPs: ips,
		IDs: s.sandbox.ids, Groups: s.m.cfg.Volumes.Groups(s.pod), Target: target, Traceparent: telemetry.Traceparent(ctx),
		File: func(volume, path string) (string, error) { return s.m.envFile(s.pod, volume, path) },
		ConfigMap: func(name string) (*v1.ConfigMap, error) {
			return s.m.cfg.Objects.ConfigMap(ctx, s.pod.Namespace, name)
		},
		Secret: func(name string) (*v1.Secret, error) { return s.m.cfg.Objects.Secret(ctx, s.pod.Namespace, name) },
	}
	if inputs.Mounts, err = s.mounts(ctx, c, inputs, volumes); err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	if inputs.Devices, err = s.m.volumeDevices(s.pod, c); err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	given, err := s.m.cfg.Devices.Give(ctx, s.pod, c)
	if err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	inputs.Given = *given
	if inputs.Given.CDIDevices, err = s.withClaims(c, given.CDIDevices); err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	config, err := containerspec.Container(s.pod, c, s.m.nodeFor(s.pod, c.Name), inputs)
	if err != nil {
		return "", &startError{reason: reasonCreateConfig, err: err}
	}
	if err := os.MkdirAll(filepath.Join(s.sandbox.config.GetLogDirectory(), c.Name), logDirMode); err != nil {
		return "", &startError{reason: reasonCreateConfig, err: fmt.Errorf("log directory: %w", err)}
	}
	noteImageVolumes(config, volumes)
	noteRecursiveReadOnly(config, c, len(inputs.Given.Mounts))
	err = s.m.starts.enter(func() (err error) {
		id, err = s.rt.createContainer(ctx, s.sandbox.id, config, s.sandbox.config)
		return err
	})
	s.countImageVolumes(volumes, err)
	if err != nil {
		return "", &startError{reason: reasonCreateContainer, err: withAdvice(err)}
	}
	s.m.cfg.Events.Normal(ctx, s.pod, c.Name, eventCreated, "Container created")
	return id, nil
}

// targetOf returns the ID of the container that an ephemeral container targets; empty if it targets none.
func (s *podSync) targetOf(start decide.Start) (string, error) {
	if start.Target == "" {
		return "", nil
	}
	target := podview.Latest(s.observed, start.Target)
	if target == nil {
		return "", fmt.Errorf("targetContainerName: unable to find target container %s", start.Target)
	}
	return target.GetId(), nil
}

// start starts a container and runs its postStart hook. When the hook fails, the container is killed.
func (s *podSync) start(ctx context.Context, start decide.Start, id string) (err error) {
	c := start.Container
	ctx, span := s.m.phase(ctx, "container.start", s.pod, telemetry.Subject{Container: c.Name, ContainerID: id})
	defer func() { telemetry.End(span, err) }()
	defer s.timePhase(phases.Start, c.Name)(&err)
	about := []any{
		telemetry.KeyPod, podName(s.pod), telemetry.KeyContainer, c.Name, telemetry.KeyContainerID, id,
		telemetry.KeyRestartCount, start.Restart.Count, telemetry.KeyCause, start.Restart.Cause,
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// Logged before the call: if syncloop is killed during the call, the log still has the cause of the start.
	s.m.cfg.Logger.InfoContext(ctx, "starting a container", about...)
	startCtx, release := linger(ctx, s.m.cfg.Clock, startLinger)
	err = s.m.starts.enter(func() error { return s.rt.startContainer(startCtx, id) })
	release()
	if err != nil {
		return &startError{reason: reasonRunContainer, err: err, container: id}
	}
	s.m.cfg.Events.Normal(ctx, s.pod, c.Name, eventStarted, startedMessage(start.Restart.Cause))
	s.m.cfg.Logger.InfoContext(ctx, "started a container", about...)
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	hookErr := s.m.runHook(ctx, s.rt, hook{
		name: "postStart", handler: c.Lifecycle.PostStart, pod: s.pod, container: c.Name, ports: c.Ports, containerID: id, ips: s.sandbox.ips,
	})
	if hookErr == nil {
		return nil
	}
	// A hook that was interrupted has not failed: the pod is to end, or this process is stopping. The container continues
	// to run, and its preStop hook runs when it is killed.
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// No cause: it may hold a secret of the container.
	s.m.warn(ctx, s.pod, c.Name, eventPostStart, "PostStartHook failed")
	t := target{id: id, name: c.Name, spec: c, why: eventPostStart}
	killErr := s.m.killContainer(ctx, s.rt, s.pod, t, graceOf(s.pod), nil)
	failure := errors.Join(fmt.Errorf("postStart hook: %w", hookErr), killErr)
	return &startError{reason: reasonPostStart, err: failure, container: id}
}

// startedMessage returns the message of the event of a started container. For a restart it contains the cause.
func startedMessage(cause string) string {
	if cause == decide.CauseFirst {
		return "Container started"
	}
	return "Container started again: " + cause
}

// nextInLogs returns the restart count after the last log in a folder. A runtime that has lost its records, as after a
// reboot, must not overwrite the logs, so a folder that cannot be listed is not taken for an empty one.
func nextInLogs(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the first container of its name has no folder yet
	}
	if err != nil {
		return 0, fmt.Errorf("the earlier logs of the container are not known and could be overwritten: %w", err)
	}
	next := 0
	for _, entry := range entries {
		number, _, ok := strings.Cut(entry.Name(), ".log")
		if n, err := strconv.Atoi(number); ok && err == nil && n >= next {
			next = n + 1
		}
	}
	return next, nil
}

// graceOf returns the grace period of a pod's containers in seconds.
func graceOf(pod *v1.Pod) int64 {
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		return *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return minGraceSeconds
}
