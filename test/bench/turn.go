package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quartet-node/quartet/test/figures"
)

const (
	// deaths is the most containers of a turn that are killed.
	deaths = 10
	// restarts is how often the agent of a turn is killed and started again. Single ones differ by a half.
	restarts = 5
	// repeatedPods is the most pods whose start is repeated: so few are Ready so soon that chance makes a third of it.
	// starts is how often they are started. The container of a single pod is killed as often, each time in another pod,
	// because a second end within minutes is followed by a pause.
	repeatedPods = 10
	starts       = 5
	// pollReady is the interval of requests for /pods when one container has started.
	pollReady = 5 * time.Millisecond
)

// usage is what has been used of the processors so far, in seconds.
type usage struct {
	agent, runtime float64
	machine        machineSeconds
}

// usage reads it. Without a node its part is 0.
func (r *podRig) usage(a *agent) (u usage, err error) {
	if a != nil {
		if u.agent, err = a.cpu(); err != nil {
			return u, err
		}
	}
	own, ownErr := processorTicks(r.runtime.PID())
	ended, endedErr := endedTicks(r.runtime.PID())
	u.runtime = float64(own+ended) / clockTicks
	u.machine, err = machine()
	return u, errors.Join(err, ownErr, endedErr)
}

// started fills in the figures of a start.
func started(t *figures.Turn, seconds []float64, before, after usage) {
	const p99 = 99
	t.ReadyMedian, t.ReadySlowest = figures.Median(seconds), figures.Slowest(seconds)
	t.ReadyP99 = figures.Percentile(seconds, p99)
	t.AgentCPU, t.RuntimeCPU = after.agent-before.agent, after.runtime-before.runtime
	t.AllCPU, t.IdleCPU = after.machine.busy-before.machine.busy, after.machine.idle-before.machine.idle
}

// nodeTurn measures a node: it starts the node, and one pod, because a node that has just started has caches to fill.
// Then it measures the pods.
func (r *podRig) nodeTurn(
	ctx context.Context, name, program string, pods int, idle time.Duration,
) (t figures.Turn, err error) {
	a, err := r.start(name, program, pods)
	if err != nil {
		return t, err
	}
	// Neither node has to remove what the other one has left for its garbage collection.
	defer func() { err = errors.Join(err, a.stop(), r.removeSandboxes(context.WithoutCancel(ctx))) }()
	first, _, err := r.place(ctx, a, 1)
	if err != nil {
		return t, fmt.Errorf("the first pod: %w", err)
	}
	if _, err := r.takeAway(ctx, first); err != nil {
		return t, fmt.Errorf("the first pod: %w", err)
	}
	if err := rest(ctx, settleTime); err != nil {
		return t, err
	}
	set, err := r.measureStarts(ctx, a, pods, &t)
	if err != nil {
		return t, err
	}
	if err := r.measureRest(ctx, a, idle, &t); err != nil {
		return t, fmt.Errorf("at rest: %w", err)
	}
	w := watch(ctx, r.cri)
	defer func() { err = errors.Join(err, w.close()) }()
	if set, t.Death, err = r.nodeDeaths(ctx, w, a, set); err != nil {
		return t, fmt.Errorf("killed containers: %w", err)
	}
	sets, seconds := []podSet{set}, []float64{}
	for range restarts {
		if err := a.kill(); err != nil {
			return t, err
		}
		begin := time.Now()
		if a, err = r.start(name, program, pods); err != nil {
			return t, err
		}
		last, ready, err := r.newPod(ctx, w, a)
		if err != nil {
			return t, fmt.Errorf("a new pod after the restart: %w", err)
		}
		sets, seconds = append(sets, last), append(seconds, ready.Sub(begin).Seconds())
		if err := rest(ctx, settleTime); err != nil {
			return t, err
		}
	}
	t.Restart = figures.Median(seconds)
	if t.Gone, err = r.takeAway(ctx, sets...); err != nil {
		return t, err
	}
	// Nor the folders and cgroups of its pods.
	return t, untilNothingIsLeft(ctx)
}

// startsOf returns how often a number of pods is started in a turn.
func startsOf(pods int) int {
	if pods > repeatedPods {
		return 1
	}
	return starts
}

// measureStarts starts a number of pods, several times if they are few, and returns the last ones.
func (r *podRig) measureStarts(ctx context.Context, a *agent, pods int, t *figures.Turn) (set podSet, err error) {
	place := func() (podSet, []float64, error) { return r.place(ctx, a, pods) }
	if pods == 1 {
		w := watch(ctx, r.cri)
		defer func() { err = errors.Join(err, w.close()) }()
		// Requests every few milliseconds would take a tenth of the processors from a single pod.
		place = func() (podSet, []float64, error) {
			begin := time.Now()
			one, ready, err := r.newPod(ctx, w, a)
			return one, []float64{ready.Sub(begin).Seconds()}, err
		}
	}
	tidy := func() error {
		_, err := r.takeAway(ctx, set)
		return errors.Join(err, untilNothingIsLeft(ctx))
	}
	*t, err = r.repeat(ctx, a, pods, tidy, func() (seconds []float64, err error) {
		set, seconds, err = place()
		return seconds, err
	})
	return set, err
}

// repeat measures the starts of a number of pods, and returns the medians of their figures. Between two starts it
// tidies the pods away. a is nil without a node.
func (r *podRig) repeat(
	ctx context.Context, a *agent, pods int, tidy func() error, start func() ([]float64, error),
) (t figures.Turn, err error) {
	var all []figures.Turn
	for i := range startsOf(pods) {
		if i > 0 {
			if err := errors.Join(tidy(), rest(ctx, settleTime)); err != nil {
				return t, err
			}
		}
		one, err := r.measured(a, start)
		if err != nil {
			return t, err
		}
		all = append(all, one)
	}
	t.TakeStarts(all)
	return t, nil
}

// measured returns the figures of a start, which returns the seconds until each pod was Ready. a is nil without a node.
func (r *podRig) measured(a *agent, start func() ([]float64, error)) (t figures.Turn, err error) {
	before, err := r.usage(a)
	if err != nil {
		return t, err
	}
	seconds, err := start()
	if err != nil {
		return t, err
	}
	after, err := r.usage(a)
	started(&t, seconds, before, after)
	return t, err
}

// measureRest measures a node that has nothing to do, after some time in which it finishes its work.
func (r *podRig) measureRest(ctx context.Context, a *agent, length time.Duration, t *figures.Turn) error {
	const finish = 3
	if err := rest(ctx, max(settleTime, length/finish)); err != nil {
		return err
	}
	before, err := a.cpu()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := rest(ctx, length); err != nil {
		return err
	}
	after, err := a.cpu()
	if err != nil {
		return err
	}
	const percent = 100
	t.RestCPU = percent * (after - before) / time.Since(begin).Seconds()
	t.Memory, err = memoryOf(a.cmd.Process.Pid)
	return err
}

// nodeDeaths kills containers one after another, and returns the median of the seconds until the successor of each is
// Ready, and the pods that are left. A single pod is replaced after each death.
func (r *podRig) nodeDeaths(ctx context.Context, w *watcher, a *agent, set podSet) (podSet, float64, error) {
	var seconds []float64
	for _, name := range set.names[:min(deaths, len(set.names))] {
		one, err := r.nodeDeath(ctx, w, name)
		if err != nil {
			return set, 0, err
		}
		seconds = append(seconds, one)
	}
	for len(set.names) == 1 && len(seconds) < starts {
		if _, err := r.takeAway(ctx, set); err != nil {
			return set, 0, err
		}
		if err := errors.Join(untilNothingIsLeft(ctx), rest(ctx, settleTime)); err != nil {
			return set, 0, err
		}
		var err error
		if set, _, err = r.newPod(ctx, w, a); err != nil {
			return set, 0, err
		}
		if err := rest(ctx, settleTime); err != nil {
			return set, 0, err
		}
		one, err := r.nodeDeath(ctx, w, set.names[0])
		if err != nil {
			return set, 0, err
		}
		seconds = append(seconds, one)
	}
	return set, figures.Median(seconds), nil
}

// nodeDeath kills the container of a pod, and returns the seconds until its successor is Ready.
func (r *podRig) nodeDeath(ctx context.Context, w *watcher, pod string) (float64, error) {
	was, _, err := containerOf(ctx, pod)
	if err != nil {
		return 0, err
	}
	if err := killProcess(ctx, r.cri, was); err != nil {
		return 0, err
	}
	begin := time.Now()
	ready, err := untilReplaced(ctx, w, pod, was)
	return ready.Sub(begin).Seconds(), err
}

// newPod puts the manifest of one pod in place, waits until it is Ready, and returns when it was.
func (r *podRig) newPod(ctx context.Context, w *watcher, a *agent) (set podSet, ready time.Time, err error) {
	if set, err = r.write(a, 1); err != nil {
		return set, ready, err
	}
	if err := set.rename(); err != nil {
		return set, ready, err
	}
	ready, err = untilReplaced(ctx, w, set.names[0], "")
	return set, ready, err
}

// untilReplaced waits until a container of a pod that is not the one named is Ready in /pods, and returns when the
// answer with it had arrived. Before the runtime has started it, /pods is not requested: an answer has all pods of the
// node, and bare calls, which are compared with, share the processors with no such requests. The first request comes
// pollReady after the start: an agent learns of the start when this program does, and with 300 pods an answer without
// the container takes both as long as the agent needs.
func untilReplaced(ctx context.Context, w *watcher, pod, was string) (ready time.Time, err error) {
	if err := w.start(ctx, pod, was); err != nil {
		return ready, err
	}
	select {
	case <-ctx.Done():
		return ready, ctx.Err()
	case <-time.After(pollReady):
	}
	if err := poll(ctx, pollReady, func(ctx context.Context) (bool, error) {
		now, arrived, err := containerOf(ctx, pod)
		ready = arrived
		return err == nil && now != "" && now != was, err
	}); err != nil {
		return ready, fmt.Errorf("pod %s has no other container that is Ready: %w", pod, err)
	}
	return ready, nil
}

// containerOf returns the ID of the only container of a pod, "" when the pod is not Ready, and when the answer with it
// had arrived.
func containerOf(ctx context.Context, name string) (id string, arrived time.Time, err error) {
	pods, arrived, err := listPods(ctx)
	if err != nil {
		return "", arrived, err
	}
	for i := range pods {
		if pods[i].Metadata.Name == name {
			return pods[i].container(), arrived, nil
		}
	}
	return "", arrived, fmt.Errorf("%s has no pod %s", podsURL, name)
}

// bareTurn measures the calls that a node cannot do without.
func (r *podRig) bareTurn(ctx context.Context, pods int) (t figures.Turn, err error) {
	defer func() { err = errors.Join(err, r.removeSandboxes(context.WithoutCancel(ctx))) }()
	var sandboxes []string
	tidy := func() error { return r.removeSandboxes(ctx) }
	// The programs of the runtime are read from the disk once, as before the measurement of a node.
	if _, err := r.barePod(ctx, r.cri, pods+restarts); err != nil {
		return t, fmt.Errorf("the first pod: %w", err)
	}
	if err := errors.Join(tidy(), rest(ctx, settleTime)); err != nil {
		return t, err
	}
	if t, err = r.repeat(ctx, nil, pods, tidy, func() (seconds []float64, err error) {
		sandboxes, seconds, err = r.bareStart(ctx, pods)
		return seconds, err
	}); err != nil {
		return t, err
	}
	if sandboxes, t.Death, err = r.bareDeaths(ctx, sandboxes); err != nil {
		return t, fmt.Errorf("killed containers: %w", err)
	}
	var seconds []float64
	for i := range restarts {
		begin := time.Now()
		another, err := r.barePod(ctx, r.cri, pods+i)
		if err != nil {
			return t, fmt.Errorf("one more pod: %w", err)
		}
		sandboxes, seconds = append(sandboxes, another), append(seconds, time.Since(begin).Seconds())
	}
	t.Restart = figures.Median(seconds)
	t.Gone, err = r.bareStop(ctx, sandboxes)
	return t, err
}
