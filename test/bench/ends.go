package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
)

// benchNamespace is the namespace of all pods of the benchmark.
const benchNamespace = "bench"

// pollGone is the interval at which the runtime is asked for running containers. It is the resolution of the
// measurement.
const pollGone = 5 * time.Millisecond

// compareDeaths kills the containers of some pods, one after another, and compares the times until another container
// runs in the same sandbox: with Quartet, and with a loop that creates and starts the container as soon as the runtime
// reports the exit.
func compareDeaths(ctx context.Context, n *node, pods int) (result Deaths, err error) {
	result.Pods = pods
	runtime, err := connect(ctx, n.Layout.RuntimeEndpoint())
	if err != nil {
		return result, err
	}
	defer runtime.Close(ctx) //nolint:errcheck // nothing was written that a close could lose
	fmt.Printf("%3d container exits: bare CRI calls…", pods)
	bare, err := n.bareDeaths(ctx, runtime, pods)
	if err != nil {
		return result, fmt.Errorf("bare CRI calls: %w", err)
	}
	fmt.Print(" Quartet…")
	quartet, err := n.quartetDeaths(ctx, runtime, pods)
	if err != nil {
		return result, fmt.Errorf("quartet: %w", err)
	}
	fmt.Println(" done")
	result.BareP50, result.BareP99 = percentile(bare, 50), percentile(bare, 99)
	result.QuartetP50, result.QuartetP99 = percentile(quartet, 50), percentile(quartet, 99)
	result.RatioP50, result.RatioP99 = result.QuartetP50/result.BareP50, result.QuartetP99/result.BareP99
	return result, nil
}

func (n *node) bareDeaths(
	ctx context.Context, runtime internalapi.RuntimeService, pods int,
) (seconds []float64, err error) {
	if err := n.stopServices(ctx); err != nil {
		return nil, err
	}
	w := watch(ctx, runtime)
	defer func() { err = errors.Join(err, w.close()) }()
	var sandboxes []string
	defer func() { err = errors.Join(err, removeAll(context.WithoutCancel(ctx), runtime, sandboxes)) }()
	for i := range pods {
		sandbox, err := n.barePod(ctx, runtime, i)
		sandboxes = append(sandboxes, sandbox)
		if err != nil {
			return nil, err
		}
	}
	for i, sandbox := range sandboxes {
		was, err := containerIn(ctx, runtime, sandbox)
		if err != nil {
			return nil, err
		}
		if err := killProcess(ctx, runtime, was); err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := w.end(ctx, was); err != nil {
			return nil, fmt.Errorf("wait for the exit of container %s: %w", was, err)
		}
		if err := n.bareContainer(ctx, runtime, i, sandbox, 1); err != nil {
			return nil, err
		}
		at, err := w.next(ctx, sandbox, was)
		if err != nil {
			return nil, fmt.Errorf("wait for another container in sandbox %s: %w", sandbox, err)
		}
		seconds = append(seconds, at.Sub(begin).Seconds())
	}
	return seconds, nil
}

func (n *node) quartetDeaths(
	ctx context.Context, runtime internalapi.RuntimeService, pods int,
) (seconds []float64, err error) {
	if _, err := n.startPods(ctx, pods); err != nil {
		return nil, err
	}
	w := watch(ctx, runtime)
	defer func() { err = errors.Join(err, w.close()) }()
	running, err := runtime.ListContainers(ctx, benchContainers())
	if err != nil {
		return nil, fmt.Errorf("list the containers: %w", err)
	}
	for _, c := range running {
		if err := killProcess(ctx, runtime, c.GetId()); err != nil {
			return nil, err
		}
		begin := time.Now()
		at, err := w.next(ctx, c.GetPodSandboxId(), c.GetId())
		if err != nil {
			return nil, fmt.Errorf("wait for another container in sandbox %s: %w", c.GetPodSandboxId(), err)
		}
		seconds = append(seconds, at.Sub(begin).Seconds())
	}
	return seconds, n.stopPods(ctx, pods)
}

// compareDeletes compares the times until the runtime lists nothing of the pods as running. One time begins with the
// removal of their manifests, the other with the first of the bare calls that stop each container and then its sandbox,
// all pods at once.
func compareDeletes(ctx context.Context, n *node, pods, rounds int) (result Deletes, err error) {
	result.Pods, result.Rounds = pods, rounds
	runtime, err := connect(ctx, n.Layout.RuntimeEndpoint())
	if err != nil {
		return result, err
	}
	defer runtime.Close(ctx) //nolint:errcheck // nothing was written that a close could lose
	var bare, quartet []float64
	for round := range rounds {
		fmt.Printf("%3d pods deleted, round %d of %d: bare CRI calls…", pods, round+1, rounds)
		seconds, err := n.bareDelete(ctx, runtime, pods)
		if err != nil {
			return result, fmt.Errorf("bare CRI calls: %w", err)
		}
		bare = append(bare, seconds)
		fmt.Printf(" %.2f s; Quartet…", seconds)
		if seconds, err = n.quartetDelete(ctx, runtime, pods); err != nil {
			return result, fmt.Errorf("quartet: %w", err)
		}
		quartet = append(quartet, seconds)
		fmt.Printf(" %.2f s\n", seconds)
	}
	result.Bare, result.Quartet = median(bare), median(quartet)
	result.Ratio = result.Quartet / result.Bare
	return result, nil
}

func (n *node) bareDelete(
	ctx context.Context, runtime internalapi.RuntimeService, pods int,
) (seconds float64, err error) {
	if err := n.stopServices(ctx); err != nil {
		return 0, err
	}
	var sandboxes, containers []string
	defer func() { err = errors.Join(err, removeAll(context.WithoutCancel(ctx), runtime, sandboxes)) }()
	for i := range pods {
		sandbox, err := n.barePod(ctx, runtime, i)
		sandboxes = append(sandboxes, sandbox)
		if err != nil {
			return 0, err
		}
		container, err := containerIn(ctx, runtime, sandbox)
		if err != nil {
			return 0, err
		}
		containers = append(containers, container)
	}
	begin := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		seconds, err = untilNothingRuns(groupCtx, runtime, begin, pods)
		return err
	})
	for i := range sandboxes {
		group.Go(func() error {
			if err := runtime.StopContainer(groupCtx, containers[i], 1); err != nil {
				return fmt.Errorf("stop container %s: %w", containers[i], err)
			}
			if err := runtime.StopPodSandbox(groupCtx, sandboxes[i]); err != nil {
				return fmt.Errorf("stop sandbox %s: %w", sandboxes[i], err)
			}
			return nil
		})
	}
	return seconds, group.Wait()
}

func (n *node) quartetDelete(ctx context.Context, runtime internalapi.RuntimeService, pods int) (float64, error) {
	if _, err := n.startPods(ctx, pods); err != nil {
		return 0, err
	}
	begin := time.Now()
	for i := range pods {
		if err := n.TakeAway(file(i)); err != nil {
			return 0, err
		}
	}
	seconds, err := untilNothingRuns(ctx, runtime, begin, pods)
	if err != nil {
		return 0, err
	}
	return seconds, n.untilGone(ctx)
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
