package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/boottime"
)

// plegTroubleRules are the rules for a runtime that fails, hangs or is away.
func plegTroubleRules() []rule {
	return []rule{
		plegRule("hang-stays-local", getStatus, "that pod is inspected at once", aRuntime, plegHang),
		plegRule("hang-record", "quartet.lifecycle.v1.GetPodStatusRequest.newer_than_boottime_ns",
			"0 accepts the record.", aRuntime, plegRecord),
		plegRule("inspect-error", podStatus+".inspect_error", "Why the last inspection failed", aRuntime,
			plegInspectError),
		plegRule("runtime-away", getStatus,
			"Fails with UNAVAILABLE before the first relist has finished and if the runtime does not answer", aRuntime,
			plegRuntimeAway),
		plegRule("runtime-not-ready", "quartet.lifecycle.v1.GetHealthResponse.healthy",
			"True if a relist has finished within the limit and the runtime is ready.", aRuntime, plegRuntimeNotReady),
		plegRule("before-first-relist", lifecycle+".ListPodStatuses",
			"Fails with UNAVAILABLE before the first relist has finished.", aRestart, plegBeforeFirstRelist),
	}
}

// inspections are the calls by which a pleg may inspect a pod.
func inspections() []string {
	return []string{"PodSandboxStatus", "ContainerStatus", "ListPodSandbox", "ListContainers"}
}

// hang makes the inspection of a pod hang until the returned function is called.
func (p *plegBench) hang(uid string) (open func()) {
	var gates []func()
	for _, method := range inspections() {
		gates = append(gates, p.runtime.Hang(method, uid).Open)
	}
	return func() {
		for _, gate := range gates {
			gate()
		}
	}
}

// hung begins an inspection of a pod that hangs, and waits until the runtime has its call.
func (p *plegBench) hung(ctx context.Context, uid string) error {
	// The call ends with the check.
	go func() {
		_, _ = p.client.GetPodStatus(ctx,
			&lifecyclev1.GetPodStatusRequest{Uid: uid, NewerThanBoottimeNs: int64(boottime.Now())}, ready())
	}()
	return p.eventually(ctx, func(context.Context) error {
		for _, method := range inspections() {
			if p.runtime.Count(method, uid) > 0 {
				return nil
			}
		}
		return errors.New("GetPodStatus makes no call about the pod to the runtime")
	})
}

func plegHang(ctx context.Context, p *plegBench) error {
	hanging, other := p.run("app"), p.run("app")
	if err := p.relisted(ctx); err != nil {
		return err
	}
	p.runtime.ResetCalls()
	open := p.hang(hanging.uid)
	defer open()
	if err := p.hung(ctx, hanging.uid); err != nil {
		return err
	}
	if _, err := p.status(ctx, other.uid, boottime.Now()); err != nil {
		return fmt.Errorf("while the inspection of another pod hangs: %w", err)
	}
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	if _, _, err := p.event(ctx, s, died, other.again("app")); err != nil {
		return fmt.Errorf("while the inspection of another pod hangs: %w", err)
	}
	return nil
}

func plegRecord(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	if _, err := p.status(ctx, pod.uid, boottime.Now()); err != nil {
		return err
	}
	p.runtime.ResetCalls()
	open := p.hang(pod.uid)
	defer open()
	if err := p.hung(ctx, pod.uid); err != nil {
		return err
	}
	s, err := p.status(ctx, pod.uid, 0)
	if err != nil {
		return fmt.Errorf("while the inspection hangs: %w", err)
	}
	if len(s.GetContainers()) != 1 {
		return fmt.Errorf("while the inspection hangs the record is %v", s)
	}
	return nil
}

func plegInspectError(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	if _, err := p.status(ctx, pod.uid, boottime.Now()); err != nil {
		return err
	}
	p.runtime.ResetCalls()
	broken := status.Error(codes.Unknown, "the conformance suite breaks this call")
	var repairs []func()
	for _, method := range []string{"PodSandboxStatus", "ContainerStatus"} {
		repairs = append(repairs, p.runtime.Fail(method, pod.uid, -1, broken))
	}
	repair := func() {
		for _, undo := range repairs {
			undo()
		}
	}
	defer repair()
	_, callErr := p.status(ctx, pod.uid, boottime.Now())
	if p.runtime.Count("PodSandboxStatus", pod.uid)+p.runtime.Count("ContainerStatus", pod.uid) == 0 {
		return skip("it inspects pods by other calls than PodSandboxStatus and ContainerStatus")
	}
	if callErr == nil {
		return errors.New("the inspection has failed, and GetPodStatus for a newer status has not")
	}
	if err := p.eventually(ctx, func(ctx context.Context) error {
		s, err := p.status(ctx, pod.uid, 0)
		switch {
		case err != nil:
			return err
		case s.GetInspectError() == "" || s.GetUnknownSince() == nil:
			return errors.New("the inspection has failed, and inspect_error or unknown_since is unset")
		case len(s.GetContainers()) != 1 || len(s.GetSandboxes()) != 1:
			return fmt.Errorf("the inspection has failed, and the status has lost what it had: %v", s)
		}
		return nil
	}); err != nil {
		return err
	}
	repair()
	return p.eventually(ctx, func(ctx context.Context) error {
		s, err := p.status(ctx, pod.uid, boottime.Now())
		if err != nil {
			return err
		}
		if s.GetInspectError() != "" || s.GetUnknownSince() != nil {
			return fmt.Errorf("the inspection has succeeded, and inspect_error is %q", s.GetInspectError())
		}
		return nil
	})
}

// away stops the runtime. The returned function starts it again.
func (p *plegBench) away() (back func() error) {
	p.runtime.Stop()
	returned := false
	back = func() error {
		if returned {
			return nil
		}
		returned = true
		return p.runtime.Start()
	}
	p.cleanup(func(ctx context.Context) error { return errors.Join(back(), p.relisted(ctx)) })
	return back
}

func plegRuntimeAway(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	if _, err := p.status(ctx, pod.uid, boottime.Now()); err != nil {
		return err
	}
	back := p.away()
	limited, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	_, err := p.client.GetPodStatus(limited,
		&lifecyclev1.GetPodStatusRequest{Uid: pod.uid, NewerThanBoottimeNs: int64(boottime.Now())}, ready())
	if err := wantCode("GetPodStatus for a newer status while the runtime is away", err, codes.Unavailable); err != nil {
		return err
	}
	if s, err := p.status(ctx, pod.uid, 0); err != nil || len(s.GetContainers()) != 1 {
		return fmt.Errorf("the record while the runtime is away: %v, %w", s, orNothing(err))
	}
	if err := back(); err != nil {
		return err
	}
	return p.eventually(ctx, func(ctx context.Context) error {
		_, err := p.status(ctx, pod.uid, boottime.Now())
		return err
	})
}

func plegRuntimeNotReady(ctx context.Context, p *plegBench) error {
	p.runtime.SetConditions(false, false)
	defer p.runtime.SetConditions(true, true)
	if err := p.eventually(ctx, func(ctx context.Context) error {
		health, err := p.client.GetHealth(ctx, &lifecyclev1.GetHealthRequest{}, ready())
		if err != nil {
			return fmt.Errorf("GetHealth: %w", err)
		}
		if health.GetHealthy() || len(health.GetReasons()) == 0 || health.GetRuntime().GetReady() {
			return fmt.Errorf("the runtime is not ready, and the health is %v", health)
		}
		return nil
	}); err != nil {
		return err
	}
	p.runtime.SetConditions(true, true)
	return plegHealth(ctx, p)
}

// plegBeforeFirstRelist starts the pleg without a runtime.
func plegBeforeFirstRelist(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	back := p.away()
	if err := p.restart(ctx); err != nil {
		return err
	}
	if _, err := p.client.GetHealth(ctx, &lifecyclev1.GetHealthRequest{}, ready()); err != nil {
		return fmt.Errorf("GetHealth of a pleg without a runtime: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := p.client.ListPodStatuses(limited, &lifecyclev1.ListPodStatusesRequest{}, ready())
	if err := wantCode("ListPodStatuses before the first relist", err, codes.Unavailable); err != nil {
		return err
	}
	_, err = p.client.GetPodStatus(limited, &lifecyclev1.GetPodStatusRequest{Uid: pod.uid}, ready())
	if err := wantCode("GetPodStatus before the first relist", err, codes.Unavailable); err != nil {
		return err
	}
	s, err := subscribe(ctx, p.events, nil)
	if err != nil {
		return err
	}
	defer s.close()
	if err := back(); err != nil {
		return err
	}
	begun, err := s.begin(ctx, p.patience)
	if err != nil {
		return err
	}
	if begun.entries[pod.uid] == nil {
		return errors.New("the snapshot of a subscription from before the first relist lacks a pod of the runtime")
	}
	return nil
}
