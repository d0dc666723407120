package executor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resources"
)

// Resizes knows which resources resized pods run with; package resizes implements it.
type Resizes interface {
	// Actuated returns the changes of a pod since its containers were created; resized is false for a pod that was never
	// resized.
	Actuated(pod *v1.Pod) (actuated resize.Actuated, resized bool)
	// Actuate records a change of a pod, which has its allocated resources. After an error a restarted process does not
	// know the change.
	Actuate(pod *v1.Pod, note func(*resize.Actuated)) error
}

// neverResized implements Resizes for a node that resizes no pod.
type neverResized struct{}

// Actuated implements Resizes.
func (neverResized) Actuated(*v1.Pod) (resize.Actuated, bool) { return resize.Actuated{}, false }

// Actuate implements Resizes.
func (neverResized) Actuate(*v1.Pod, func(*resize.Actuated)) error { return nil }

// ResizeError says that a resize failed, as a whole or in part. It is retried.
type ResizeError struct{ Err error }

func (e *ResizeError) Error() string { return e.Err.Error() }
func (e *ResizeError) Unwrap() error { return e.Err }

// actuate records a change. If the process is killed before the record is on disk, the next one repeats the change.
func (s *podSync) actuate(ctx context.Context, note func(*resize.Actuated)) {
	if err := s.m.cfg.Resizes.Actuate(s.pod, note); err != nil {
		s.m.cfg.Logger.WarnContext(ctx, "cannot record a change of a pod resize: after a restart, syncloop repeats it",
			telemetry.KeyPod, podName(s.pod), telemetry.KeyPodUID, string(s.pod.UID), telemetry.KeyError, err)
	}
}

// resize changes the running containers and the pod's cgroup to the allocated resources. A failure is in the result and
// does not keep other containers from starting. resize returns an error only if ctx ends.
func (s *podSync) resize(ctx context.Context) error {
	if s.actions.Resize.Nothing() {
		return nil
	}
	ctx, span := s.m.phase(ctx, "resize", s.pod, telemetry.Subject{})
	begun := s.m.cfg.Clock.Now()
	s.m.refreshNode(ctx)
	r := &resizing{podSync: s, plan: s.actions.Resize}
	err := r.run(ctx)
	telemetry.End(span, err)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	s.m.cfg.Metrics.podResized(s.m.cfg.Clock.Since(begun), err)
	if err != nil {
		s.result.ResizeError = &ResizeError{err}
	}
	return nil
}

// resizing is one resize of a running pod: memory first, then cpu. The pod's cgroup grows before its containers and
// shrinks after them, so that a container is never limited by a smaller limit of its pod. The first error ends the
// resize; what is done by then stays.
type resizing struct {
	*podSync
	plan resize.Plan
	// hasCgroup is true if the pod has a cgroup. has are the current limits of the cgroup, wants are its new limits.
	hasCgroup  bool
	has, wants resources.Resources
}

func (r *resizing) run(ctx context.Context) error {
	if err := r.readCgroup(); err != nil {
		return err
	}
	if err := r.checkMemory(ctx); err != nil {
		return err
	}
	if err := r.memory(ctx); err != nil {
		return err
	}
	if err := r.cpu(ctx); err != nil {
		return err
	}
	if r.hasCgroup { // Ensure also updates the cgroup of the QoS class
		if _, err := r.m.cfg.Cgroups.Ensure(ctx, r.pod); err != nil {
			return err
		}
	}
	r.finish(ctx)
	return nil
}

// finish records that nothing is left to change. The pod is observed again, so that its status says so.
func (r *resizing) finish(ctx context.Context) {
	if actuated, _ := r.m.cfg.Resizes.Actuated(r.pod); actuated.Unfinished {
		r.actuate(ctx, func(a *resize.Actuated) { a.Unfinished = false })
		r.rt.wrote.Store(true)
	}
}

// readCgroup reads the limits of the pod's cgroup. A pod without a cgroup gets one when a container starts.
func (r *resizing) readCgroup() error {
	if r.m.cfg.Cgroups == nil {
		return nil
	}
	has, wants, err := r.m.cfg.Cgroups.Given(r.pod)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unable to get pod cgroup config for pod %q: %w", fullName(r.pod), err)
	}
	r.hasCgroup, r.has, r.wants = true, has, wants
	return nil
}

// checkMemory refuses memory limits below the current usage: the kernel would refuse them or kill processes.
func (r *resizing) checkMemory(ctx context.Context) error {
	var wrong []string
	if limit := r.wants.Memory; r.hasCgroup && comparableLimit(limit) < comparableLimit(r.has.Memory) {
		usage, err := r.m.cfg.Cgroups.MemoryUsage(r.pod)
		if err != nil {
			return fmt.Errorf("unable to read memory usage for pod %q: %w", fullName(r.pod), err)
		}
		if usage >= uint64(limit) { //nolint:gosec // it is below another limit, so it is not NoLimit
			wrong = append(wrong, fmt.Sprintf("attempting to set pod memory limit (%d) below current usage (%d)", limit, usage))
		}
	}
	for _, u := range r.plan.Memory {
		limit := u.Wants.MemoryLimit
		if limit == 0 || u.Has.MemoryLimit != 0 && limit >= u.Has.MemoryLimit {
			continue
		}
		usage, err := r.rt.memoryUsage(ctx, u.ID)
		if err != nil {
			return fmt.Errorf("unable to read memory usage for pod %q: %w", fullName(r.pod), err)
		}
		switch {
		case usage == nil:
			wrong = append(wrong, fmt.Sprintf("missing container %q memory usage", u.Container.Name))
		case usage.GetValue() >= uint64(limit): //nolint:gosec // it is positive
			wrong = append(wrong, fmt.Sprintf("attempting to set container %q memory limit (%d) below current usage (%d)", u.Container.Name, limit, usage.GetValue()))
		}
	}
	switch len(wrong) {
	case 0:
		return nil
	case 1:
		return errors.New("cannot decrease memory limits: " + wrong[0])
	}
	return errors.New("cannot decrease memory limits: [" + strings.Join(wrong, ", ") + "]")
}

func (r *resizing) memory(ctx context.Context) error {
	limit := resources.Resources{Memory: r.wants.Memory, Unified: r.wants.Unified}
	if comparableLimit(r.wants.Memory) > comparableLimit(r.has.Memory) {
		if err := r.limit(ctx, v1.ResourceMemory, limit); err != nil {
			return err
		}
	}
	for _, u := range r.plan.Memory {
		if err := r.update(ctx, u, u.Has.WithMemory(u.Wants)); err != nil {
			return err
		}
	}
	if comparableLimit(r.wants.Memory) < comparableLimit(r.has.Memory) {
		if err := r.limit(ctx, v1.ResourceMemory, limit); err != nil {
			return err
		}
	}
	r.notePod(ctx, resize.Amounts.WithMemory)
	return nil
}

func (r *resizing) cpu(ctx context.Context) error {
	limit := resources.Resources{CPUQuota: r.wants.CPUQuota, CPUPeriod: r.wants.CPUPeriod}
	request := resources.Resources{CPUShares: r.wants.CPUShares}
	limited := compareQuotas(r.wants, r.has)
	// A growing pod begins with the limit and a shrinking pod ends with it, so that the request never exceeds the
	// limit.
	steps := []struct {
		applies bool
		part    resources.Resources
	}{
		{limited > 0, limit},
		{r.wants.CPUShares > r.has.CPUShares, request},
		{r.wants.CPUShares < r.has.CPUShares, request},
		{limited < 0, limit},
	}
	for i, step := range steps {
		if i == len(steps)/2 {
			for _, u := range r.plan.CPU {
				// The memory of the container was changed before.
				if err := r.update(ctx, u, u.Wants); err != nil {
					return err
				}
			}
		}
		if !step.applies {
			continue
		}
		if err := r.limit(ctx, v1.ResourceCPU, step.part); err != nil {
			return err
		}
	}
	r.notePod(ctx, resize.Amounts.WithCPU)
	return nil
}

// limit changes a part of the limits of the pod's cgroup. The runtime is notified before and may refuse the change.
func (r *resizing) limit(ctx context.Context, name v1.ResourceName, part resources.Resources) error {
	if !r.hasCgroup {
		return nil
	}
	next := withPart(r.has, part)
	if err := r.notifyRuntime(ctx, next); err != nil {
		return fmt.Errorf("failed to notify runtime for UpdatePodSandboxResources (resource=%s); resize rejected: %w", name, err)
	}
	if err := r.m.cfg.Cgroups.Limit(r.pod, part); err != nil {
		return errors.Join(err, r.notifyRuntime(ctx, r.has))
	}
	r.has = next
	return nil
}

// notifyRuntime notifies the runtime of the limits that the pod's cgroup is about to have.
func (r *resizing) notifyRuntime(ctx context.Context, limits resources.Resources) error {
	update := containerspec.SandboxUpdate(r.actions.SandboxID, r.pod, *r.m.nodeNow(), limits)
	return r.rt.updatePodSandbox(ctx, update)
}

// update changes the resources of a running container.
func (r *resizing) update(ctx context.Context, u resize.Update, to resize.Amounts) error {
	c := u.Container.DeepCopy()
	amounts := to.Requirements()
	for from, into := range map[*v1.ResourceList]*v1.ResourceList{
		&amounts.Requests: &c.Resources.Requests,
		&amounts.Limits:   &c.Resources.Limits,
	} {
		if *into == nil {
			*into = v1.ResourceList{}
		}
		for name, quantity := range *from {
			if quantity.IsZero() {
				delete(*into, name)
			} else {
				(*into)[name] = quantity
			}
		}
	}
	if err := r.rt.updateContainer(ctx, u.ID, containerspec.Resources(r.pod, c, r.m.nodeFor(r.pod, c.Name))); err != nil {
		return fmt.Errorf("update the resources of container %q: %w", c.Name, err)
	}
	r.m.cfg.Logger.InfoContext(ctx, "resized a container", telemetry.KeyPod, podName(r.pod), telemetry.KeyContainer, c.Name, telemetry.KeyContainerID, u.ID)
	r.actuate(ctx, func(a *resize.Actuated) { a.Note(r.observed, u.ID, to) })
	return nil
}

// notePod records the changed pod-level resources.
func (r *resizing) notePod(ctx context.Context, change func(has, wants resize.Amounts) resize.Amounts) {
	actuated, _ := r.m.cfg.Resizes.Actuated(r.pod)
	has := actuated.OfPod(r.pod, r.observed)
	if next := change(has, resize.OfPod(r.pod.Spec.Resources)); next != has {
		r.actuate(ctx, func(a *resize.Actuated) { a.Pod = &next })
	}
}

// comparableLimit returns a limit as a comparable number: no limit is larger than any limit.
func comparableLimit(limit int64) int64 {
	if limit == resources.NoLimit {
		return math.MaxInt64
	}
	return limit
}

// compareQuotas compares cpu limits, which may have different periods.
func compareQuotas(a, b resources.Resources) int {
	milli := func(r resources.Resources) int64 {
		if r.CPUQuota == resources.NoLimit {
			return math.MaxInt64
		}
		return resources.MilliOfQuota(r.CPUQuota, int64(r.CPUPeriod)) //nolint:gosec // a period is short
	}
	switch x, y := milli(a), milli(b); {
	case x > y:
		return 1
	case x < y:
		return -1
	}
	return 0
}

// withPart returns the limits of a cgroup with a part of them replaced.
func withPart(has, part resources.Resources) resources.Resources {
	if part.CPUShares > 0 {
		has.CPUShares = part.CPUShares
	}
	if part.CPUQuota != 0 {
		has.CPUQuota, has.CPUPeriod = part.CPUQuota, part.CPUPeriod
	}
	if part.Memory != 0 {
		has.Memory, has.Unified = part.Memory, part.Unified
	}
	return has
}

// cgroupOf reads the limits of the pod's cgroup for the pod's status; nil if they cannot be read.
func (s *podSync) cgroupOf() *resources.Resources {
	if s.m.cfg.Cgroups == nil || podview.Sandbox(s.observed) == nil && s.cgroup == "" {
		return nil
	}
	has, _, err := s.m.cfg.Cgroups.Given(s.pod)
	if err != nil {
		return nil
	}
	return &has
}
