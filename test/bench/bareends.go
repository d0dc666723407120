package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/test/figures"
)

// benchNamespace is the namespace of all pods of the benchmark.
const benchNamespace = "bench"

// pollGone is the interval at which the runtime is asked for running containers. It is the resolution of the
// measurement.
const pollGone = 5 * time.Millisecond

// bareDeaths kills the containers of the first sandboxes, one after another, and starts another one as soon as the
// runtime reports the end. It returns the median of the seconds until the runtime has started it, and the sandboxes
// that are left. A single sandbox is replaced after each death, as the pod of a node is.
func (r *podRig) bareDeaths(ctx context.Context, sandboxes []string) (left []string, result float64, err error) {
	w := watch(ctx, r.cri)
	defer func() { err = errors.Join(err, w.close()) }()
	var seconds []float64
	for i, sandbox := range sandboxes[:min(deaths, len(sandboxes))] {
		one, err := r.bareDeath(ctx, w, i, sandbox)
		if err != nil {
			return sandboxes, 0, err
		}
		seconds = append(seconds, one)
	}
	for len(sandboxes) == 1 && len(seconds) < starts {
		if err := errors.Join(r.removeSandboxes(ctx), rest(ctx, settleTime)); err != nil {
			return sandboxes, 0, err
		}
		if sandboxes[0], err = r.barePod(ctx, r.cri, 0); err != nil {
			return sandboxes, 0, err
		}
		if err := rest(ctx, settleTime); err != nil {
			return sandboxes, 0, err
		}
		one, err := r.bareDeath(ctx, w, 0, sandboxes[0])
		if err != nil {
			return sandboxes, 0, err
		}
		seconds = append(seconds, one)
	}
	return sandboxes, figures.Median(seconds), nil
}

// bareDeath kills the container of a sandbox, and returns the seconds until the runtime has started another one.
func (r *podRig) bareDeath(ctx context.Context, w *watcher, i int, sandbox string) (float64, error) {
	was, err := containerIn(ctx, r.cri, sandbox)
	if err != nil {
		return 0, err
	}
	if err := killProcess(ctx, r.cri, was); err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := w.end(ctx, was); err != nil {
		return 0, fmt.Errorf("wait for the exit of container %s: %w", was, err)
	}
	err = r.bareContainer(ctx, r.cri, i, sandbox, 1)
	return time.Since(begin).Seconds(), err
}

// bareStop stops the containers of sandboxes and then the sandboxes, all at once. It returns the seconds until the
// runtime runs nothing of them.
func (r *podRig) bareStop(ctx context.Context, sandboxes []string) (seconds float64, err error) {
	containers, err := r.cri.ListContainers(ctx, benchContainers())
	if err != nil {
		return 0, err
	}
	of := map[string]string{}
	for _, c := range containers {
		of[c.GetPodSandboxId()] = c.GetId()
	}
	begin := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		seconds, err = untilNothingRuns(groupCtx, r.cri, begin, len(sandboxes))
		return err
	})
	for _, sandbox := range sandboxes {
		group.Go(func() error {
			if err := r.cri.StopContainer(groupCtx, of[sandbox], 1); err != nil {
				return fmt.Errorf("stop container %s: %w", of[sandbox], err)
			}
			if err := r.cri.StopPodSandbox(groupCtx, sandbox); err != nil {
				return fmt.Errorf("stop sandbox %s: %w", sandbox, err)
			}
			return nil
		})
	}
	return seconds, group.Wait()
}

// untilNothingRuns polls the runtime until no container and no sandbox of the benchmark runs. It returns the seconds
// since the beginning.
func untilNothingRuns(
	ctx context.Context, runtime internalapi.RuntimeService, begin time.Time, pods int,
) (float64, error) {
	// The interval grows with the number of pods, because the size of the answer and the measured time do so too.
	err := poll(ctx, pollGone*time.Duration(1+pods/10), func(ctx context.Context) (bool, error) {
		containers, err := runtime.ListContainers(ctx, benchContainers())
		if err != nil || len(containers) > 0 {
			return false, err
		}
		sandboxes, err := runtime.ListPodSandbox(ctx, &runtimev1.PodSandboxFilter{
			State:         &runtimev1.PodSandboxStateValue{State: runtimev1.PodSandboxState_SANDBOX_READY},
			LabelSelector: map[string]string{podlabels.PodNamespace: benchNamespace},
		})
		return err == nil && len(sandboxes) == 0, err
	})
	if err != nil {
		return 0, fmt.Errorf("something still runs: %w", err)
	}
	return time.Since(begin).Seconds(), nil
}

// untilNothingIsLeft waits until the node has removed the folders and cgroups of its pods, which takes longer than
// their end: otherwise the next node removes them while it is measured.
func untilNothingIsLeft(ctx context.Context) error {
	var left []string
	err := poll(ctx, pollStop, func(context.Context) (bool, error) {
		left = nil
		for _, pattern := range []string{
			filepath.Join(kubeletDir, "pods", "*"),
			"/sys/fs/cgroup/kubepods/*/pod*", "/sys/fs/cgroup/*/kubepods/*/pod*", // version 2, and version 1
		} {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return false, err
			}
			left = append(left, found...)
		}
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("the node has not removed the folders and cgroups of its pods, %q: %w", left, err)
	}
	return nil
}

// benchContainers returns the filter for the running containers of the benchmark.
func benchContainers() *runtimev1.ContainerFilter {
	return &runtimev1.ContainerFilter{
		State:         &runtimev1.ContainerStateValue{State: runtimev1.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{podlabels.PodNamespace: benchNamespace},
	}
}

// containerIn returns the only running container of a sandbox.
func containerIn(ctx context.Context, runtime internalapi.RuntimeService, sandbox string) (string, error) {
	list, err := runtime.ListContainers(ctx, &runtimev1.ContainerFilter{PodSandboxId: sandbox})
	if err != nil || len(list) != 1 {
		return "", fmt.Errorf("sandbox %s has %d containers, want one: %w", sandbox, len(list), err)
	}
	return list[0].GetId(), nil
}
