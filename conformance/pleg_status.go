package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
	"github.com/quartet-node/quartet/test/fakecri"
)

const podStatus = "quartet.lifecycle.v1.PodStatus"

// plegStatusRules are the rules of the calls that return states, with a runtime that works.
func plegStatusRules() []rule {
	return []rule{
		plegRule("status-fields", podStatus, "PodStatus is the observed state of one pod.", aRuntime, plegFields),
		plegRule("status-newest-first", podStatus+".containers", "Its containers, newest first.", aRuntime,
			plegNewestFirst),
		plegRule("status-host-network", "quartet.lifecycle.v1.Sandbox.host_network",
			"True if it uses the network of the host.", aRuntime, plegHostNetwork),
		plegRule("status-newer-than", getStatus, "If the record is older, that pod is inspected at once", aRuntime,
			plegNewerThan),
		plegRule("status-unknown-pod", getStatus,
			"A pod that the runtime does not have is a response without sandboxes and containers, and no error.", nothing,
			plegUnknownPod),
		plegRule("status-arguments", getStatus,
			"with INVALID_ARGUMENT if the UID is empty or the time is negative or in the future.", nothing, plegArguments),
		plegRule("list", lifecycle+".ListPodStatuses",
			"ListPodStatuses returns the record of all pods in the runtime.", aRuntime, plegList),
		plegRule("list-sorted", "quartet.lifecycle.v1.ListPodStatusesResponse.statuses", "Sorted by UID.", nothing,
			plegSorted),
		plegRule("list-foreign", podStatus+".uid",
			"The pod's UID, name and namespace, from the labels of its sandbox and containers.", aRuntime, plegForeign),
		plegRule("relist", lifecycle+".RequestRelist",
			"RequestRelist returns when a full relist has finished that began after the request, or after the requested moment",
			aRuntime, plegRelist),
		plegRule("health", lifecycle+".GetHealth", "It never fails while the process lives.", nothing, plegHealth),
	}
}

// status calls GetPodStatus.
func (p *plegBench) status(ctx context.Context, uid string, newerThan time.Duration) (*lifecyclev1.PodStatus, error) {
	limited, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	resp, err := p.client.GetPodStatus(limited,
		&lifecyclev1.GetPodStatusRequest{Uid: uid, NewerThanBoottimeNs: int64(newerThan)}, ready())
	if err != nil {
		return nil, fmt.Errorf("GetPodStatus of %s: %w", uid, err)
	}
	if resp.GetStatus() == nil {
		return nil, fmt.Errorf("GetPodStatus of %s: the response has no status", uid)
	}
	return resp.GetStatus(), nil
}

// list calls ListPodStatuses.
func (p *plegBench) list(ctx context.Context) ([]*lifecyclev1.PodStatus, error) {
	resp, err := p.client.ListPodStatuses(ctx, &lifecyclev1.ListPodStatusesRequest{}, ready())
	if err != nil {
		return nil, fmt.Errorf("ListPodStatuses: %w", err)
	}
	return resp.GetStatuses(), nil
}

// plegFields checks each field of a pod with one container.
func plegFields(ctx context.Context, p *plegBench) error {
	pod := p.runPod(fakecri.Pod{Name: "web", Namespace: "shop", Containers: []string{"app"},
		Annotations: map[string]string{"example.com/note": "yes"}})
	before := boottime.Now()
	s, err := p.status(ctx, pod.uid, before)
	if err != nil {
		return err
	}
	if len(s.GetSandboxes()) != 1 || len(s.GetContainers()) != 1 {
		return fmt.Errorf("the status has %d sandboxes and %d containers, want one each", len(s.GetSandboxes()),
			len(s.GetContainers()))
	}
	sandbox, c := s.GetSandboxes()[0], s.GetContainers()[0]
	observed := time.Duration(s.GetObservedBoottimeNs())
	for what, holds := range map[string]bool{
		"uid, name and namespace": s.GetUid() == pod.uid && s.GetName() == "web" && s.GetNamespace() == "shop",
		"ips":                     len(s.GetIps()) == 1 && slices.Equal(s.GetIps(), sandbox.GetIps()),
		"observed_boottime_ns":    observed >= before && observed <= boottime.Now(),
		"observed_at":             time.Since(s.GetObservedAt().AsTime()).Abs() < time.Minute,
		"inspect_error":           s.GetInspectError() == "" && s.GetUnknownSince() == nil,

		"id of the sandbox":         sandbox.GetId() == pod.sandbox,
		"state of the sandbox":      sandbox.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY,
		"created_at of the sandbox": time.Since(sandbox.GetCreatedAt().AsTime()).Abs() < time.Minute,
		"labels of the sandbox":     sandbox.GetLabels()["io.kubernetes.pod.uid"] == pod.uid,
		"annotations of it":         sandbox.GetAnnotations()["example.com/note"] == "yes",
		"host_network":              !sandbox.GetHostNetwork(),

		"id of the container":          c.GetId() == pod.containers["app"] && c.GetSandboxId() == pod.sandbox,
		"name of the container":        c.GetName() == "app" && c.GetAttempt() == 0,
		"state of the container":       c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_RUNNING,
		"created_at of the container":  time.Since(c.GetCreatedAt().AsTime()).Abs() < time.Minute,
		"started_at of the container":  !c.GetStartedAt().AsTime().Before(c.GetCreatedAt().AsTime()),
		"finished_at of the container": c.GetFinishedAt() == nil,
		"images of the container":      c.GetImage() != "" && c.GetImageRef() != "" && c.GetImageId() != "",
		"labels of the container":      c.GetLabels()["io.kubernetes.container.name"] == "app",
		"annotations of the container": c.GetAnnotations()["example.com/note"] == "yes",
	} {
		if !holds {
			return fmt.Errorf("the field %s is wrong: %v", what, s)
		}
	}
	return nil
}

func plegNewestFirst(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	for range 3 {
		pod.again("app")
	}
	p.runtime.KillSandbox(pod.sandbox)
	second, _ := p.runtime.RunPod(fakecri.Pod{UID: pod.uid, Attempt: 1})
	p.runtime.AddContainer(second, "app", pod.attempts["app"]+1)
	s, err := p.status(ctx, pod.uid, boottime.Now())
	if err != nil {
		return err
	}
	if len(s.GetSandboxes()) != 2 || len(s.GetContainers()) != 5 {
		return fmt.Errorf("the status has %d sandboxes and %d containers, want 2 and 5", len(s.GetSandboxes()),
			len(s.GetContainers()))
	}
	if s.GetSandboxes()[0].GetAttempt() != 1 {
		return errors.New("the first sandbox is not the newest")
	}
	if !slices.IsSortedFunc(s.GetContainers(), func(a, b *lifecyclev1.Container) int {
		return b.GetCreatedAt().AsTime().Compare(a.GetCreatedAt().AsTime())
	}) {
		return errors.New("the containers are not sorted by their creation")
	}
	return nil
}

func plegHostNetwork(ctx context.Context, p *plegBench) error {
	pod := p.runPod(fakecri.Pod{HostNetwork: true, Containers: []string{"app"}})
	s, err := p.status(ctx, pod.uid, boottime.Now())
	if err != nil {
		return err
	}
	if len(s.GetSandboxes()) != 1 || !s.GetSandboxes()[0].GetHostNetwork() || len(s.GetSandboxes()[0].GetIps()) > 0 {
		return fmt.Errorf("a pod on the host's network has the sandboxes %v", s.GetSandboxes())
	}
	return nil
}

// plegNewerThan changes a pod without an event of the runtime.
func plegNewerThan(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	if err := p.relisted(ctx); err != nil {
		return err
	}
	id := pod.containers["app"]
	p.runtime.MuteEvents(true)
	p.runtime.Exit(id, 3)
	p.runtime.MuteEvents(false)
	after := boottime.Now()
	s, err := p.status(ctx, pod.uid, after)
	if err != nil {
		return err
	}
	if time.Duration(s.GetObservedBoottimeNs()) <= after {
		return fmt.Errorf("the status was observed at %d, it must be later than %d", s.GetObservedBoottimeNs(), after)
	}
	if containerIn(s, id).GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
		return fmt.Errorf("the container has ended, and the status says %v", containerIn(s, id))
	}
	return nil
}

func plegUnknownPod(ctx context.Context, p *plegBench) error {
	for _, newerThan := range []time.Duration{0, boottime.Now()} {
		s, err := p.status(ctx, "conformance-there-is-no-such-pod", newerThan)
		if err != nil {
			return err
		}
		if len(s.GetSandboxes()) > 0 || len(s.GetContainers()) > 0 {
			return fmt.Errorf("the status is %v", s)
		}
	}
	return nil
}

func plegArguments(ctx context.Context, p *plegBench) error {
	for what, request := range map[string]*lifecyclev1.GetPodStatusRequest{
		"an empty uid":         {},
		"a negative time":      {Uid: "conformance-uid", NewerThanBoottimeNs: -1},
		"a time in the future": {Uid: "conformance-uid", NewerThanBoottimeNs: int64(boottime.Now() + time.Hour)},
	} {
		_, err := p.client.GetPodStatus(ctx, request, ready())
		if err := wantCode(what, err, codes.InvalidArgument); err != nil {
			return err
		}
	}
	return nil
}

func plegList(ctx context.Context, p *plegBench) error {
	want := map[string]bool{}
	for range 3 {
		want[p.run("app").uid] = true
	}
	if err := p.relisted(ctx); err != nil {
		return err
	}
	all, err := p.list(ctx)
	if err != nil {
		return err
	}
	for _, s := range all {
		if !want[s.GetUid()] {
			return fmt.Errorf("%q is in the list, which the runtime does not have, or is there twice", s.GetUid())
		}
		delete(want, s.GetUid())
	}
	if len(want) > 0 {
		return fmt.Errorf("%d pods of the runtime are not in the list", len(want))
	}
	return nil
}

func plegSorted(ctx context.Context, p *plegBench) error {
	if p.runtime != nil {
		for range 12 { // the tenth sorts before the second
			p.run()
		}
		if err := p.relisted(ctx); err != nil {
			return err
		}
	}
	all, err := p.list(ctx)
	if err != nil {
		return err
	}
	if len(all) < 2 {
		return skip("the runtime has fewer than two pods")
	}
	var uids []string
	for _, s := range all {
		uids = append(uids, s.GetUid())
	}
	if !slices.IsSorted(uids) {
		return fmt.Errorf("the order is %v", uids)
	}
	return nil
}

// plegForeign adds a sandbox without the label of a pod's UID.
func plegForeign(ctx context.Context, p *plegBench) error {
	foreign, _ := p.runtime.RunPod(fakecri.Pod{Name: "foreign", Containers: []string{"app"}})
	p.cleanup(func(context.Context) error { p.runtime.DropSandbox(foreign); return nil })
	p.run("app")
	if err := p.relisted(ctx); err != nil {
		return err
	}
	all, err := p.list(ctx)
	if err != nil {
		return err
	}
	if len(all) != 1 || all[0].GetUid() == "" {
		return fmt.Errorf("a sandbox and a container without the label of a pod are in the list: %v", all)
	}
	return nil
}

func plegRelist(ctx context.Context, p *plegBench) error {
	p.runtime.MuteEvents(true)
	pod := p.run("app")
	p.runtime.MuteEvents(false)
	before := time.Now()
	resp, err := p.client.RequestRelist(ctx, &lifecyclev1.RequestRelistRequest{}, ready())
	if err != nil {
		return err
	}
	if resp.GetRelistedAt().AsTime().Before(before) {
		return fmt.Errorf("the relist ended at %v, before the request", resp.GetRelistedAt().AsTime())
	}
	all, err := p.list(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(s *lifecyclev1.PodStatus) bool { return s.GetUid() == pod.uid }) {
		return errors.New("a pod that was there before the request is not in the record")
	}
	return nil
}

func plegHealth(ctx context.Context, p *plegBench) error {
	return p.eventually(ctx, func(ctx context.Context) error {
		health, err := p.client.GetHealth(ctx, &lifecyclev1.GetHealthRequest{}, ready())
		switch {
		case err != nil:
			return fmt.Errorf("GetHealth: %w", err)
		case health.GetHealthy() == (len(health.GetReasons()) > 0):
			return fmt.Errorf("healthy is %t, and the reasons are %q", health.GetHealthy(), health.GetReasons())
		case p.runtime != nil && !health.GetHealthy():
			return fmt.Errorf("the runtime is well, and it is unhealthy: %q", health.GetReasons())
		case health.GetLastRelistAt() == nil && health.GetHealthy():
			return errors.New("it is healthy and last_relist_at is unset")
		case health.GetMode() == lifecyclev1.RelistMode_RELIST_MODE_UNSPECIFIED:
			return errors.New("mode is unset")
		case health.GetHealthy() && (health.GetRuntime().GetName() == "" || !health.GetRuntime().GetReady()):
			return fmt.Errorf("it is healthy, and the runtime is %v", health.GetRuntime())
		}
		return nil
	})
}
