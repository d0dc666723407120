package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/phases"
)

// sandbox is the sandbox of the containers to start.
type sandbox struct {
	id     string
	ids    containerspec.IDs
	config *runtimeapi.PodSandboxConfig
	// handler is the runtime handler of the sandbox; empty for the default.
	handler string
	// ips returns the pod's addresses. If pleg has not observed them yet, the first call requests them from the runtime.
	ips func(context.Context) ([]string, error)
}

// prepareSandbox sets s.sandbox to the sandbox in use or to a new one.
func (s *podSync) prepareSandbox(ctx context.Context) (err error) {
	s.m.refreshNode(ctx)
	if !s.actions.CreateSandbox {
		ids, err := s.m.userNamespace(s.pod)
		if err != nil {
			return err
		}
		config, _, err := s.m.sandboxConfig(s.pod, containerspec.SandboxInputs{Attempt: s.actions.Attempt, IDs: ids})
		if err != nil {
			return err
		}
		s.setCgroupParent(config)
		s.sandbox = sandbox{
			id: s.actions.SandboxID, ids: ids, config: config,
			handler: s.handlerOf(s.actions.SandboxID), ips: s.ips(s.actions.SandboxID, s.observed.GetIps()),
		}
		return nil
	}
	ctx, span := s.m.phase(ctx, "sandbox", s.pod, telemetry.Subject{})
	defer func() { telemetry.End(span, err) }()
	defer s.timePhase(phases.Sandbox, "")(&err)
	defer func() {
		if err != nil && ctx.Err() == nil { // each error is wrapped once, with text that the event has already
			s.m.cfg.Metrics.sandboxFailed()
			s.m.warn(ctx, s.pod, "", eventSandboxFailed, fmt.Sprintf("Failed to create pod sandbox: %v", errors.Unwrap(err)))
		}
	}()
	s.m.cfg.Metrics.sandboxBegun()
	handler, ids, err := s.handler(ctx)
	if err != nil {
		return fmt.Errorf("sandbox of pod %s: %w", podName(s.pod), err)
	}
	config, cut, err := s.m.sandboxConfig(s.pod, containerspec.SandboxInputs{
		Attempt: s.actions.Attempt, IDs: ids, Traceparent: telemetry.Traceparent(ctx),
	})
	if err != nil {
		return fmt.Errorf("sandbox of pod %s: %w", podName(s.pod), err)
	}
	s.setCgroupParent(config)
	for _, sentence := range cut {
		s.m.warn(ctx, s.pod, "", eventDNSConfigForming, sentence)
	}
	podview.KeepStart(config.Annotations, s.observed)
	config.Annotations[podlabels.StartCause] = s.actions.SandboxReason
	if err := s.noteClaims(config.Annotations); err != nil {
		return fmt.Errorf("sandbox of pod %s: %w", podName(s.pod), err)
	}
	if err := os.MkdirAll(config.GetLogDirectory(), logDirMode); err != nil {
		return fmt.Errorf("log directory of pod %s: %w", podName(s.pod), err)
	}
	id, err := s.runSandbox(ctx, config, handler)
	if err != nil {
		return fmt.Errorf("create the sandbox of pod %s: %w", podName(s.pod), err)
	}
	if len(cut) > 0 {
		s.m.cfg.Logger.WarnContext(ctx, "the pod's DNS configuration exceeds limits and was truncated", telemetry.KeyPod, podName(s.pod), telemetry.KeyReason, strings.Join(cut, "; "))
	}
	s.m.cfg.Logger.InfoContext(ctx, "created a sandbox", telemetry.KeyPod, podName(s.pod), telemetry.KeySandboxID, id,
		telemetry.KeyCause, s.actions.SandboxReason)
	s.sandbox = sandbox{id: id, ids: ids, config: config, handler: handler, ips: s.ips(id, nil)}
	return nil
}

// handlerOf returns the runtime handler of an observed sandbox; empty for the default.
func (s *podSync) handlerOf(id string) string {
	for _, observed := range s.observed.GetSandboxes() {
		if observed.GetId() == id {
			return observed.GetRuntimeHandler()
		}
	}
	return ""
}

// runSandbox creates the sandbox after it has passed the start gate. The handler of a pod without a runtime class is
// empty.
func (s *podSync) runSandbox(
	ctx context.Context,
	config *runtimeapi.PodSandboxConfig,
	handler string,
) (id string, err error) {
	waiting := s.m.cfg.Clock.Now()
	err = s.m.starts.pass(ctx, func() (err error) {
		begun := s.m.cfg.Clock.Now()
		s.m.cfg.Metrics.gatePassed(begun.Sub(waiting))
		telemetry.Wait(ctx, s.m.cfg.Tracer, aboutSandbox(config), "its turn", waiting, begun)
		id, err = s.rt.runPodSandbox(ctx, config, handler)
		s.m.cfg.Metrics.sandboxCalled(handler, s.m.cfg.Clock.Since(begun), err)
		return err
	})
	return id, err
}

// ips returns a function that returns the addresses of a pod in a sandbox: the known ones, or those that one request to
// the runtime returns.
func (s *podSync) ips(id string, known []string) func(context.Context) ([]string, error) {
	var mu sync.Mutex
	switch {
	case s.pod.Spec.HostNetwork:
		known = s.m.nodeNow().IPs
		fallthrough
	case len(known) > 0:
		return func(context.Context) ([]string, error) { return known, nil }
	}
	return func(ctx context.Context) ([]string, error) {
		mu.Lock() // held over the call, because concurrent callers need its result
		defer mu.Unlock()
		if len(known) > 0 {
			return known, nil
		}
		status, err := s.rt.podSandboxStatus(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("addresses of pod %s: %w", podName(s.pod), err)
		}
		if ip := status.GetNetwork().GetIp(); ip != "" {
			known = append(known, ip)
		}
		for _, ip := range status.GetNetwork().GetAdditionalIps() {
			known = append(known, ip.GetIp())
		}
		return known, nil
	}
}

// sandboxConfig returns the configuration of a pod's sandbox. cut has one sentence for each part of its DNS
// configuration that exceeds a limit.
func (m *Manager) sandboxConfig(
	pod *v1.Pod,
	in containerspec.SandboxInputs,
) (config *runtimeapi.PodSandboxConfig, cut []string, err error) {
	host, err := m.hostDNS()
	if err != nil {
		return nil, nil, err
	}
	in.Groups = m.cfg.Volumes.Groups(pod)
	in.DNS, cut = containerspec.DNS(pod, *m.nodeNow(), host)
	config, err = containerspec.Sandbox(pod, m.nodeFor(pod, ""), in)
	return config, cut, err
}

// hostDNS reads the node's resolv.conf; nil if the configuration names none.
func (m *Manager) hostDNS() (*runtimeapi.DNSConfig, error) {
	path := "/etc/resolv.conf"
	if configured := m.cfg.Kubelet.ResolverConfig; configured != nil {
		path = *configured
	}
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && m.cfg.Kubelet.ResolverConfig == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("resolvConf of the configuration: %w", err)
	}
	defer func() { _ = file.Close() }() // opened only for reading
	dns, err := containerspec.ParseResolvConf(file)
	if err != nil {
		return nil, fmt.Errorf("resolvConf of the configuration, %s: %w", path, err)
	}
	return dns, nil
}
