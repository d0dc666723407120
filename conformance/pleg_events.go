package conformance

import (
	"context"
	"errors"
	"fmt"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
)

// plegEventRules are the rules of the events of WatchEvents.
func plegEventRules() []rule {
	return []rule{
		plegRule("snapshot", watchEvents, "the snapshot has one POD_SYNC event for each pod with its status", aRuntime,
			plegSnapshot),
		plegRule("subscribers", watchEvents, "any number of other clients may", aRuntime, plegSubscribers),
		plegRule("container-started", eventType+"EVENT_TYPE_CONTAINER_STARTED",
			"A container was observed running for the first time.", aRuntime, plegStarted),
		plegRule("container-died", eventType+"EVENT_TYPE_CONTAINER_DIED", "A container has ended", aRuntime, plegDied),
		plegRule("container-died-unseen", eventType+"EVENT_TYPE_CONTAINER_DIED",
			"or is gone without having been observed to end.", aRuntime, plegDiedUnseen),
		plegRule("container-removed", eventType+"EVENT_TYPE_CONTAINER_REMOVED",
			"An ended container was removed from the runtime.", aRuntime, plegRemoved),
		plegRule("sandbox-ended", eventType+"EVENT_TYPE_POD_SYNC",
			"Another change of the pod: a sandbox was created, ended or was removed", aRuntime, plegSandbox),
		plegRule("pod-gone", "quartet.stream.v1.Frame.removed", "True on a DELTA that removes the key.", aRuntime,
			plegGone),
		plegRule("deaths-never-fold", watchEvents, "deltas are single events that never fold", aRuntime, plegNeverFold),
	}
}

// plegSnapshot checks the snapshot of several pods.
func plegSnapshot(ctx context.Context, p *plegBench) error {
	pods := map[string]*scriptedPod{}
	for range 3 {
		pod := p.run("app")
		pods[pod.uid] = pod
	}
	_, begun, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	if begun.start != streamv1.Start_START_SNAPSHOT {
		return fmt.Errorf("a subscription without a token begins with %v", begun.start)
	}
	for uid, pod := range pods {
		event, _ := begun.entries[uid].(*lifecyclev1.Event)
		switch {
		case event == nil:
			return fmt.Errorf("the pod %s is not in it", uid)
		case event.GetType() != podSync:
			return fmt.Errorf("the event of %s has the type %v", uid, event.GetType())
		case event.GetPodUid() != uid || event.GetStatus().GetUid() != uid:
			return fmt.Errorf("the event of %s is about %q, with the status of %q", uid, event.GetPodUid(),
				event.GetStatus().GetUid())
		case len(event.GetStatus().GetContainers()) != 1 ||
			event.GetStatus().GetContainers()[0].GetId() != pod.containers["app"]:
			return fmt.Errorf("the status of %s has not its container: %v", uid, event.GetStatus())
		}
	}
	for key := range begun.entries {
		if pods[key] == nil {
			return fmt.Errorf("%q is in it, which the runtime does not have", key)
		}
	}
	return nil
}

// plegSubscribers has many subscribers follow the same event.
func plegSubscribers(ctx context.Context, p *plegBench) error {
	const many = 20
	pod := p.run("app")
	var all []*subscription
	for range many {
		s, _, err := p.follow(ctx, nil)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	id := pod.again("app")
	for i, s := range all {
		if _, _, err := p.event(ctx, s, died, id); err != nil {
			return fmt.Errorf("subscriber %d of %d: %w", i+1, many, err)
		}
	}
	return nil
}

// changed makes a change and waits for the event of a kind about a container or a pod.
func (p *plegBench) changed(
	ctx context.Context, kind lifecyclev1.EventType, change func() (id string),
) (*lifecyclev1.Event, error) {
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return nil, err
	}
	event, m, err := p.event(ctx, s, kind, change())
	if err != nil {
		return nil, err
	}
	if event.GetOccurredAt() == nil || event.GetObservedAt() == nil {
		return nil, fmt.Errorf("the event %v lacks a time: %v", kind, event)
	}
	if event.GetStatus().GetUid() != event.GetPodUid() || m.GetKey() != event.GetPodUid() {
		return nil, fmt.Errorf("the event %v of the key %q is about %q and has the status of %q", kind, m.GetKey(),
			event.GetPodUid(), event.GetStatus().GetUid())
	}
	return event, nil
}

// containerIn returns a container of a status, nil if it is not there.
func containerIn(status *lifecyclev1.PodStatus, id string) *lifecyclev1.Container {
	for _, c := range status.GetContainers() {
		if c.GetId() == id {
			return c
		}
	}
	return nil
}

func plegStarted(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	var id string
	event, err := p.changed(ctx, started, func() string {
		id = p.runtime.AddContainer(pod.sandbox, "second", 0)
		return id
	})
	if err != nil {
		return err
	}
	if event.GetContainerName() != "second" {
		return fmt.Errorf("the event has the container name %q, want %q", event.GetContainerName(), "second")
	}
	if got := containerIn(event.GetStatus(), id).GetState(); got != lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING {
		return fmt.Errorf("the container is %v in the status of its own start", got)
	}
	return nil
}

func plegDied(ctx context.Context, p *plegBench) error {
	const code, reason = 7, "OOMKilled"
	pod := p.run("app")
	id := pod.containers["app"]
	event, err := p.changed(ctx, died, func() string {
		p.runtime.ExitWithReason(id, code, reason)
		return id
	})
	if err != nil {
		return err
	}
	c := containerIn(event.GetStatus(), id)
	switch {
	case event.GetExitCode() != code || event.GetReason() != reason || event.GetContainerName() != "app":
		return fmt.Errorf("the event has exit code %d, reason %q and name %q, want %d, %q and %q", event.GetExitCode(),
			event.GetReason(), event.GetContainerName(), code, reason, "app")
	case c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_EXITED || c.GetExitCode() != code ||
		c.GetReason() != reason:
		return fmt.Errorf("the status of the event has the container as %v", c)
	case c.GetFinishedAt() == nil || !event.GetOccurredAt().AsTime().Equal(c.GetFinishedAt().AsTime()):
		return fmt.Errorf("the event occurred at %v, and the container ended at %v", event.GetOccurredAt().AsTime(),
			c.GetFinishedAt().AsTime())
	}
	return nil
}

func plegDiedUnseen(ctx context.Context, p *plegBench) error {
	pod := p.run("app", "other")
	_, err := p.changed(ctx, died, func() string {
		id := pod.containers["app"]
		// Without events of the runtime, and gone before the next list.
		p.runtime.MuteEvents(true)
		p.runtime.DropContainer(id)
		p.runtime.MuteEvents(false)
		if err := p.relisted(ctx); err != nil {
			return err.Error()
		}
		return id
	})
	return err
}

func plegRemoved(ctx context.Context, p *plegBench) error {
	pod := p.run("app", "other")
	id := pod.containers["app"]
	p.runtime.Exit(id, 0)
	if err := p.relisted(ctx); err != nil {
		return err
	}
	event, err := p.changed(ctx, removed, func() string {
		p.runtime.DropContainer(id)
		return id
	})
	if err != nil {
		return err
	}
	if containerIn(event.GetStatus(), id) != nil {
		return errors.New("the container is in the status of its own removal")
	}
	return nil
}

func plegSandbox(ctx context.Context, p *plegBench) error {
	pod := p.run()
	event, err := p.changed(ctx, podSync, func() string {
		p.runtime.KillSandbox(pod.sandbox)
		return pod.uid
	})
	if err != nil {
		return err
	}
	for _, sandbox := range event.GetStatus().GetSandboxes() {
		if sandbox.GetId() == pod.sandbox && sandbox.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_NOT_READY {
			return nil
		}
	}
	return fmt.Errorf("the sandbox has ended, and its state in the event is another: %v", event.GetStatus().GetSandboxes())
}

func plegGone(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	pod.drop()
	if _, err := s.until(ctx, p.patience, "a DELTA that removes "+pod.uid, func(m message) bool {
		return m.GetKey() == pod.uid && m.GetRemoved()
	}); err != nil {
		return err
	}
	_, begun, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	if begun.entries[pod.uid] != nil {
		return fmt.Errorf("the pod %s is gone, and a new snapshot has it", pod.uid)
	}
	return nil
}

// plegNeverFold has two containers of the same name end at once.
func plegNeverFold(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	return p.deaths(ctx, s, map[string]bool{pod.again("app"): true, pod.again("app"): true, pod.again("app"): true})
}
