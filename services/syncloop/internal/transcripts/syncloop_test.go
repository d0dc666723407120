package transcripts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/privilege"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/api/engineapi"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/claims"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/configobjects"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/hostips"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/mirrorpods"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/runtimeclasses"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/servicelinks"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/statusmanager"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/evictionbook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/gracebook"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podworkers"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/probe/prober"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
	"github.com/quartet-node/quartet/services/syncloop/internal/storage/volumes"
)

// syncloop is one process.
type syncloop struct {
	store   *podstore.Store
	pool    *podworkers.Pool
	evicter *engineapi.Evictions
	// changed holds one signal: the published statuses have changed.
	changed chan struct{}
	kill    func()
}

func newSyncloop(s *story) (*syncloop, error) {
	ctx, end := context.WithCancel(context.Background())
	gone := ctx.Done()
	s.machine.caller.Store(&gone)
	log := func(in lane, actor string) *slog.Logger {
		return slog.New(logged{Handler: slog.DiscardHandler, story: s, lane: in, actor: actor, ctx: ctx})
	}
	book := evictionbook.Open(evictionbook.Config{
		Path: filepath.Join(s.stateDir, "evictions.json"), Boot: "boot", Clock: clock.RealClock{},
		Logger: slog.New(slog.DiscardHandler),
	})
	ends := gracebook.Open(gracebook.Config{
		Dir: filepath.Join(s.stateDir, "endings"), Boot: "boot", Now: s.sinceBoot, Logger: slog.New(slog.DiscardHandler),
	})
	promises := resizes.Open(filepath.Join(s.stateDir, "resizes"), "", slog.New(slog.DiscardHandler))
	recorder := events{s, ctx, &sync.Map{}}
	realClock, tracer := clock.RealClock{}, telemetry.Off()
	asking := newProbes(s, log(lanePLEG, "probe"))
	mounts, err := newVolumes(s, recorder)
	if err != nil {
		end()
		return nil, errors.Join(err, book.Close())
	}
	manager, err := newManager(s, ends, promises, recorder, asking, mounts)
	if err != nil {
		end()
		return nil, errors.Join(err, book.Close())
	}
	out := &syncloop{changed: make(chan struct{}, 1)}
	out.store = podstore.New(podstore.Config{
		API: statusmanager.None{}, Probes: asking, Replaced: ends.Replaced, Resizes: promises, Clock: realClock,
		Tracer: tracer, Logger: slog.New(slog.DiscardHandler),
	})
	out.pool = podworkers.NewPool(ctx, podworkers.Config{
		Runtime: acting{manager, s, ctx}, Observer: s.pleg, Statuses: states{out.store, s, ctx, &sync.Map{}}, Endings: ends,
		Resizes: promises, Clock: realClock, BootTime: s.sinceBoot,
		Tracer: tracer, Logger: log(laneWork, "worker"), Events: recorder, Resync: time.Minute,
		Jitter: func(d time.Duration) time.Duration { return d },
	})
	cfg := loop.Config{
		Privileges: privilege.Everything(),
		Desired:    s.config, Events: s.pleg.events, Pleg: s.pleg, Probes: asking, Workers: out.pool, Store: out.store,
		PodEvents: recorder, Evictions: book, Endings: ends, Resizes: promises,
		PodFromObserved: executor.PodFromObserved, Clock: realClock, Tracer: tracer, Logger: log(laneLoop, "loop"),
		Resync: time.Minute, Mirrors: mirrorpods.None{},
	}
	if len(s.nodes.List()) > 0 {
		cfg.Node = s.nodes
	}
	out.evicter = &engineapi.Evictions{
		Book: book, Store: out.store, Workers: out.pool, Metrics: engineapi.NewMetrics(nil), Events: recorder,
	}
	turning := loop.New(cfg)
	var running sync.WaitGroup
	running.Go(func() {
		if err := turning.Run(ctx); !errors.Is(err, context.Canceled) {
			s.t.Errorf("%v: Run() error = %v, want %v", errEnded, err, context.Canceled)
		}
	})
	running.Go(func() { out.follow(ctx) })
	running.Go(func() {
		if err := asking.Run(ctx); !errors.Is(err, context.Canceled) {
			s.t.Errorf("the probes ended by themselves: %v, want %v", err, context.Canceled)
		}
	})
	running.Go(func() {
		if err := mounts.Run(ctx); !errors.Is(err, context.Canceled) {
			s.t.Errorf("the volumes ended by themselves: %v, want %v", err, context.Canceled)
		}
	})
	out.kill = sync.OnceFunc(func() {
		end()
		running.Wait()
		out.pool.Wait()
		out.store.Close()
		if err := book.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return out, nil
}

func newVolumes(s *story, recorder events) (*volumes.Manager, error) {
	return volumes.New(volumes.Config{
		PodsDir: filepath.Join(s.stateDir, "root", "pods"), Clock: clock.RealClock{}, Events: recorder, Logger: slog.New(slog.DiscardHandler),
		Plugins: []volumes.Plugin{
			mounts{Plugin: &volumes.EmptyDir{Mounter: s.machine.mounted}, machine: s.machine},
			volumes.HostPath{},
		},
	})
}

func newManager(
	s *story, ends *gracebook.Book, promises *resizes.Book,
	recorder events, asking *prober.Manager, mounts *volumes.Manager,
) (*executor.Manager, error) {
	resolvConf := filepath.Join(s.stateDir, "resolv.conf")
	if err := os.WriteFile(resolvConf, []byte("nameserver 198.51.100.53\n"), 0o600); err != nil {
		return nil, err
	}
	addresses := hostips.New(func() []string { return []string{"198.51.100.1"} })
	addresses.Detect()
	return executor.New(executor.Config{
		Runtime: func() (internalapi.RuntimeService, error) { return runtimeService{m: s.machine}, nil },
		Images:  func() (internalapi.ImageManagerService, error) { return imageService{m: s.machine}, nil },
		Clock:   clock.RealClock{}, Logger: slog.New(slog.DiscardHandler), Events: recorder, Endings: ends, Resizes: promises,
		NodeName: "node", HostIPs: addresses,
		Objects: configobjects.None{}, RuntimeClasses: runtimeclasses.ByName{}, Services: servicelinks.None{},
		Claims:     claims.None{},
		PodLogsDir: filepath.Join(s.stateDir, "logs"), RootDir: filepath.Join(s.stateDir, "root"),
		Liveness: asking.Liveness, Startup: asking.Startup, Volumes: mounts,
		Kubelet: &kubeletconfigv1beta1.KubeletConfiguration{ResolverConfig: &resolvConf},
	}), nil
}

// follow signals each change of the published statuses.
func (s *syncloop) follow(ctx context.Context) {
	for ctx.Err() == nil {
		source, err := s.store.Source()
		if err != nil { // not published yet
			time.Sleep(time.Millisecond)
			continue
		}
		sub, err := source.Subscribe(ctx, nil)
		if err != nil {
			return
		}
		defer sub.Close()
		for {
			if _, err := sub.Next(ctx); err != nil {
				return
			}
			select {
			case s.changed <- struct{}{}:
			default:
			}
		}
	}
}

// tellStatuses writes the published status of each pod if it has changed.
func (s *story) writeStatuses() {
	list, err := s.syncloop.store.List()
	if err != nil {
		return
	}
	now := map[types.UID]string{}
	for _, one := range list {
		var pod v1.Pod
		if err := pod.Unmarshal(one.GetPod()); err != nil {
			s.t.Error(err)
			return
		}
		now[pod.UID] = string(pod.UID) + " is " + statusOf(&pod, one)
		if s.reported[pod.UID] != now[pod.UID] {
			s.line(laneStatus, "status", now[pod.UID])
		}
	}
	for uid, text := range s.reported {
		if now[uid] == "" {
			s.line(laneStatus, "status", strings.Fields(text)[0]+" is not listed any more")
		}
	}
	s.reported = now
}

// statusOf returns a short form of a published status.
func statusOf(pod *v1.Pod, recorder *enginev1.Pod) string {
	words := []string{string(pod.Status.Phase)}
	if pod.Status.Reason != "" {
		words[0] += " (" + pod.Status.Reason + ": " + pod.Status.Message + ")"
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue {
			words = append(words, "ready")
		}
		if c.Type == v1.PodResizePending {
			words = append(words, "resize "+c.Reason+" ("+c.Message+")")
		}
		if c.Type == v1.PodResizeInProgress {
			words = append(words, "is resized")
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		text := c.Name
		switch {
		case c.State.Running != nil:
			text += " runs"
		case c.State.Waiting != nil:
			text += " waits (" + c.State.Waiting.Reason + ")"
		case c.State.Terminated != nil:
			text += fmt.Sprintf(" has ended with %d", c.State.Terminated.ExitCode)
		}
		if c.RestartCount > 0 {
			text += fmt.Sprintf(", restart count %d", c.RestartCount)
		}
		words = append(words, text)
	}
	if recorder.GetSource() == "" {
		words = append(words, "no source names it")
	}
	return strings.Join(words, ", ")
}

// states is the store as the workers see it. It writes a line for each state of a worker.
type states struct {
	*podstore.Store
	story *story
	ctx   context.Context //nolint:containedctx // it ends with the process
	// last has the last written state of each pod, as a podworkers.State by types.UID.
	last *sync.Map
}

// SetState implements podworkers.Statuses.
func (s states) SetState(uid types.UID, state podworkers.State) {
	if was, _ := s.last.Swap(uid, state); was != state && s.ctx.Err() == nil {
		s.story.line(workOf(uid), "worker", fmt.Sprintf("%s: %v", uid, state))
	}
	s.Store.SetState(uid, state)
}

// Forget implements podworkers.Statuses.
func (s states) Forget(uid types.UID) {
	s.last.Delete(uid)
	s.story.line(workOf(uid), "worker", fmt.Sprintf("%s: gone", uid))
	s.Store.Forget(uid)
}

// acting is the executor as the workers see it. It writes lines for what the calls to the runtime do not show.
type acting struct {
	*executor.Manager
	story *story
	ctx   context.Context //nolint:containedctx // it ends with the process
}

// SyncPod implements podworkers.Runtime.
func (a acting) SyncPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus) (executor.Result, error) {
	result, err := a.Manager.SyncPod(ctx, pod, observed)
	if result.RetryAfter > 0 && a.ctx.Err() == nil {
		a.story.line(workOf(pod.UID), "worker", fmt.Sprintf("%s: comes back in %v", pod.UID, result.RetryAfter.Round(time.Millisecond)))
	}
	return result, err
}

// KillPod implements podworkers.Runtime.
func (a acting) KillPod(ctx context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus, grace int64) error {
	a.story.line(workOf(pod.UID), "worker", fmt.Sprintf("%s: ends the pod, %d s are left for it", pod.UID, grace))
	return a.Manager.KillPod(ctx, pod, observed, grace)
}

// events writes the events of pods.
type events struct {
	story *story
	ctx   context.Context //nolint:containedctx // it ends with the process
	// warned has the events that were written: reason and message.
	warned *sync.Map
}

// Normal implements executor.Events. It writes no message that the reason makes obvious.
func (e events) Normal(_ context.Context, pod *v1.Pod, container, reason, message string) {
	if !strings.Contains(message, "probe") {
		message = ""
	}
	e.record(pod, container, reason, message)
}

// Warning implements executor.Events. A repeated warning is not written again, because podevents only counts it.
func (e events) Warning(_ context.Context, pod *v1.Pod, container, reason, message string) {
	if _, before := e.warned.LoadOrStore(reason+message, true); !before {
		e.record(pod, container, "Warning "+reason, message)
	}
}

// AnnotatedWarning implements the events of engineapi.Evictions. It ignores annotations, which are for programs.
func (e events) AnnotatedWarning(
	ctx context.Context, pod *v1.Pod, container, reason, message string, _ map[string]string,
) {
	e.Warning(ctx, pod, container, reason, message)
}

func (e events) record(pod *v1.Pod, container, reason, message string) {
	if e.ctx.Err() != nil {
		return
	}
	subject := string(pod.UID)
	if container != "" {
		subject += "/" + container
	}
	if message != "" {
		reason += ": " + message
	}
	e.story.line(workOf(pod.UID), "event", subject+" "+reason)
}
