package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/cri"
	"github.com/quartet-node/quartet/internal/nodeconfig"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/images"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/pullrecords"
)

// Reasons of waiting containers, as in the kubelet.
// minRemovals keeps a machine with one processor busy while a removal waits for the disk.
const minRemovals = 2

const (
	reasonCrashLoop       = "CrashLoopBackOff"
	reasonCreateConfig    = "CreateContainerConfigError"
	reasonCreateContainer = "CreateContainerError"
	reasonRunContainer    = "RunContainerError"
	reasonPostStart       = "PostStartHookError"
)

// Manager makes the runtime match pods. Its methods may be called from any goroutine, but for one pod from one
// goroutine at a time.
type Manager struct {
	cfg Config
	// node is the last known node. refreshNode replaces it under nodeMu when containers are started.
	node   atomic.Pointer[containerspec.Node]
	nodeMu sync.Mutex
	// nodeFile writes Config.NodeFile. A disk that hangs delays no pod.
	nodeFile statedir.Writer

	images *images.Puller
	// held lists the resources that each pod holds.
	podResources []podResource

	// starts limits the concurrent calls that start pods, removals limits the concurrent removals of ended pods.
	starts, removals *startGate

	calls cri.Caller
}

// New returns a Manager. It starts nothing and does not call the runtime.
func New(cfg Config) *Manager {
	if cfg.Tracer == nil {
		cfg.Tracer = telemetry.Off()
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	if cfg.Events == nil {
		cfg.Events = noopEvents{}
	}
	if cfg.Resizes == nil {
		cfg.Resizes = neverResized{}
	}
	if cfg.Devices == nil {
		cfg.Devices = noDevices{}
	}
	if cfg.ResourceClaims == nil {
		cfg.ResourceClaims = noClaims{}
	}
	kubelet := cfg.Kubelet
	puller := images.Config{
		Calls:  cri.NewCaller(cfg.Tracer, cmp.Or(kubelet.ImageServiceEndpoint, kubelet.ContainerRuntimeEndpoint)),
		Images: cfg.Images, Clock: cfg.Clock, Tracer: cfg.Tracer, Logger: cfg.Logger, Metrics: cfg.ImageMetrics,
		Phases: cfg.Phases, Events: cfg.Events, Credentials: cfg.Credentials, Providers: cfg.Providers,
		Serial: kubelet.SerializeImagePulls == nil || *kubelet.SerializeImagePulls,
	}
	if nodeconfig.RecordsPulls(kubelet) {
		puller.Records = pullrecords.New(pullrecords.Config{
			RootDir: cfg.RootDir, Clock: cfg.Clock, Logger: cfg.Logger,
			Policy: pullrecords.Policy{
				Verification: kubelet.ImagePullCredentialsVerificationPolicy,
				Allowlist:    kubelet.PreloadedImagesVerificationAllowlist,
			},
		})
	}
	if kubelet.RegistryPullQPS != nil {
		puller.QPS, puller.Burst = float32(*kubelet.RegistryPullQPS), int(kubelet.RegistryBurst)
	}
	if kubelet.MaxParallelImagePulls != nil {
		puller.MaxParallel = int(*kubelet.MaxParallelImagePulls)
	}
	m := &Manager{
		cfg: cfg, images: images.New(puller), calls: cri.NewCaller(cfg.Tracer, kubelet.ContainerRuntimeEndpoint),
		starts:   newStartGate(callsPerProcessor*runtime.NumCPU(), cfg.Clock),
		removals: newStartGate(max(minRemovals, runtime.NumCPU()), cfg.Clock),
	}
	m.podResources = m.newPodResources()
	m.node.Store(nodeOf(cfg))
	m.loadNode()
	return m
}

// Images returns the image puller; it knows the images that are about to be used.
func (m *Manager) Images() *images.Puller { return m.images }

// SyncPod makes the runtime match a pod that is to run. The observed status must be newer than the last write for this
// pod.
//
// It returns an error if a retry may succeed without any other change; the result is valid with an error, too. A
// container in a back-off is no error: the result has its reason and the time of the next try. If ctx ends, SyncPod
// returns its error soon; the next observation shows what was done until then.
func (m *Manager) SyncPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus) (Result, error) {
	if err := m.supported(pod); err != nil {
		m.warn(ctx, pod, "", eventUnsupported, err.Error())
		return Result{SandboxError: err}, err
	}
	runtime, err := m.cfg.Runtime()
	if err != nil {
		return Result{}, err
	}
	m.useResources(ctx, pod) // before the first access, so that no change is missed
	unlisted := map[string]error{}
	facts := decide.Facts{
		Now: m.cfg.Clock.Now(), Liveness: m.cfg.Liveness, Startup: m.cfg.Startup,
		Replaced: func(containerID string) bool { return m.cfg.Endings.Replaced(pod.UID, containerID) },
		Logged: func(container string) int {
			next, err := nextInLogs(filepath.Join(containerspec.LogDir(m.cfg.PodLogsDir, pod), container))
			unlisted[container] = err
			return next
		},
	}
	facts.Actuated, facts.Resized = m.cfg.Resizes.Actuated(pod)
	if longest := m.cfg.Kubelet.CrashLoopBackOff.MaxContainerRestartPeriod; longest != nil {
		facts.BackoffMax = longest.Duration
	}
	s := &podSync{m: m, rt: m.instrument(runtime), pod: pod, observed: observed, unlisted: unlisted}
	s.actions = decide.Pod(pod, observed, facts)
	err = s.run(ctx)
	if s.actions.CreateSandbox && requestsUserNamespace(pod) && ctx.Err() == nil {
		m.cfg.Metrics.userNamespacedPod(err)
	}
	s.result.Wrote, s.result.Cgroup = s.rt.wrote.Load(), s.cgroupOf()
	return s.result, err
}

// podSync is one run of SyncPod.
type podSync struct {
	m        *Manager
	rt       *tracedRuntime
	pod      *v1.Pod
	observed *lifecyclev1.PodStatus
	actions  decide.Actions
	sandbox  sandbox
	// unlisted has the errors of listing the logs of containers.
	unlisted map[string]error

	imageVolumes imageVolumes
	pullSecrets  pullSecrets
	services     serviceVariables
	// cgroup is the name of the pod's cgroup; empty if pods have no cgroups of their own.
	cgroup string

	mu     sync.Mutex // guards result while containers are prepared concurrently
	result Result
}

func (s *podSync) run(ctx context.Context) error {
	for _, wait := range s.actions.Wait {
		s.m.cfg.Events.Warning(ctx, s.pod, wait.Container.Name, eventBackOff,
			fmt.Sprintf("Back-off restarting failed container %s in pod %s", wait.Container.Name, fullName(s.pod)))
		s.reason(wait.Container.Name, reasonCrashLoop, fmt.Sprintf("back-off %s restarting failed container=%s pod=%s",
			wait.Delay, wait.Container.Name, fullName(s.pod)))
		s.retryAfter(wait.Until.Sub(s.m.cfg.Clock.Now()))
	}
	if s.actions.Nothing() {
		return nil
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	if err := s.resize(ctx); err != nil {
		return err
	}
	if len(s.actions.Start) == 0 && !s.actions.CreateSandbox {
		return nil
	}
	err := s.prepareResources(ctx)
	if err == nil {
		err = s.prepareSandbox(ctx)
	}
	if err != nil {
		s.result.SandboxError = err
		return err
	}
	return s.startContainers(ctx)
}

// stop stops and removes what must be gone before anything is started.
func (s *podSync) stop(ctx context.Context) error {
	replace := s.actions.CreateSandbox && len(s.observed.GetSandboxes()) > 0
	if replace {
		s.m.cfg.Events.Normal(ctx, s.pod, "", eventSandboxChanged, "Pod sandbox changed, it will be killed and re-created.")
	}
	if s.actions.StopAll || replace {
		return s.m.stopPod(ctx, s.rt, s.pod, s.observed, graceOf(s.pod), replace)
	}
	var errs []error
	for _, id := range s.actions.StopSandboxes {
		errs = append(errs, s.rt.stopPodSandbox(ctx, id))
	}
	errs = append(errs, s.m.killListed(ctx, s.rt, s.pod, s.observed, s.actions.Kill))
	if err := errors.Join(errs...); err != nil || len(s.actions.Reset) > 0 {
		return errors.Join(err, s.reset(ctx, err == nil))
	}
	return s.removeUnstarted(ctx)
}

// reset removes the containers of a pod that restarts all its containers, in order, after all have ended. Their logs
// stay.
func (s *podSync) reset(ctx context.Context, ended bool) error {
	if !ended || len(s.actions.Reset) == 0 {
		return nil // a container that could not be killed is not removed either
	}
	s.m.cfg.Logger.InfoContext(ctx, "restarting all containers of a pod because of a restart rule of an ended container", telemetry.KeyPod, podName(s.pod),
		telemetry.KeyContainerID, s.actions.Reset[len(s.actions.Reset)-1])
	for _, id := range s.actions.Reset {
		for _, c := range s.observed.GetContainers() {
			if c.GetId() != id {
				continue
			}
			if err := s.m.removeContainer(ctx, s.rt, string(s.pod.UID), c); err != nil {
				return err // the order matters
			}
		}
	}
	return nil
}

// removeUnstarted removes the containers that were created, not started, and are about to be recreated. A killed
// process may have left the runtime in the middle of a start: two containers of one name must never run.
func (s *podSync) removeUnstarted(ctx context.Context) error {
	var errs []error
	for _, start := range s.actions.Start {
		c := podview.Latest(s.observed, start.Container.Name)
		if c.GetState() != lifecyclev1.ContainerState_CONTAINER_STATE_CREATED {
			continue
		}
		if err := s.m.removeContainer(ctx, s.rt, string(s.pod.UID), c); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// reason records why a container waits.
func (s *podSync) reason(container, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.result.Reasons == nil {
		s.result.Reasons = map[string]ContainerReason{}
	}
	s.result.Reasons[container] = ContainerReason{Reason: reason, Message: message}
}

// retryAfter moves the time of the next try forward.
func (s *podSync) retryAfter(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d > 0 && (s.result.RetryAfter == 0 || d < s.result.RetryAfter) {
		s.result.RetryAfter = d
	}
}

// podName returns the name of a pod as Quartet writes it in logs and errors.
func podName(pod *v1.Pod) string {
	return pod.Namespace + "/" + pod.Name
}

// fullName returns the name of a pod as the kubelet writes it in the messages of a status.
func fullName(pod *v1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}
