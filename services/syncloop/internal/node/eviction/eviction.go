// Package eviction relieves pressure on the node's resources. nodestatus measures the resources and compares them with
// the thresholds; this package acts. For disk pressure it first removes unused containers and images. Then it evicts
// pods, one at a time in the order of [Rank], and waits until the pod is gone and nodestatus has measured again.
//
// Before that, and periodically without pressure, it evicts pods that use more of the node's disk than their own limits
// allow (limits.go).
//
// An evicted pod is Failed with the reason Evicted, as with a kubelet, and stays so: see package evictionbook. All
// evictions use the same code as EvictPod.
package eviction

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/internal/watchdog"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

const (
	// Reason is the status.reason of an evicted pod, and the reason of its event. It is the kubelet's.
	Reason = "Evicted"
	// eventThreshold is the reason of the node's event when pods must be evicted.
	eventThreshold = "EvictionThresholdMet"
	// hardGrace is the grace period in seconds when a hard threshold is crossed, as in the kubelet.
	hardGrace = 1
	// goneTimeout is how long to wait for an evicted pod before the next one is evicted, and gonePeriod how often that is
	// checked. They are the kubelet's numbers.
	goneTimeout = 30 * time.Second
	gonePeriod  = time.Second
	// reclaimPeriod is the minimum time between two removals of unused objects, because little new accumulates in less.
	reclaimPeriod = time.Minute
	// statsTimeout bounds the reading of the resource usage of pods.
	statsTimeout = 10 * time.Second
)

// Config configures an Evictor.
type Config struct {
	// Stats returns the resource usage of pods. Required.
	Stats interface {
		Summary(ctx context.Context) (*statsv1alpha1.Summary, error)
		Disks() stats.Disks
	}
	// Limits is true if pods are held to their disk limits: localStorageCapacityIsolation of the KubeletConfiguration.
	Limits bool
	// Pods returns the pods that may be evicted: the running ones, with their status. Required.
	Pods func() ([]*v1.Pod, error)
	// Spared reports whether a pod is never evicted for others. Required.
	Spared func(pod *v1.Pod) bool
	// Evict evicts a pod. Grace is in seconds; annotations are set on the event. Required.
	Evict func(
		ctx context.Context, uid types.UID, eviction podstore.Eviction, grace int64, annotations map[string]string,
	) error
	// Gone reports whether nothing of a pod runs any more and it holds no resources of the machine. Required.
	Gone func(uid types.UID) bool
	// RemoveContainers and RemoveImages remove unused objects under disk pressure, and RemoveEvicted removes the ended
	// containers of evicted pods. Required.
	RemoveContainers, RemoveEvicted func(ctx context.Context)
	RemoveImages                    func(ctx context.Context) error
	// Events records events about the node: *podevents.Recorder. Nil discards the events.
	Events interface {
		NodeWarning(ctx context.Context, reason, message string)
	}
	// MaxGrace is the maximum grace period in seconds when a soft threshold is crossed: evictionMaxPodGracePeriod of the
	// KubeletConfiguration.
	MaxGrace int64
	// Clock is the time. BootTime is the time since boot, which cannot be set: it shows whether a measurement is older
	// than an action even if the clock was set in between. Required.
	Clock    clock.WithTicker
	BootTime func() time.Duration
	Logger   *slog.Logger
	// Metrics counts evictions; nil discards the counts.
	Metrics *Metrics
}

// Evictor relieves pressure. Create it with New.
type Evictor struct {
	cfg Config
	// pressing holds only the latest signals under pressure.
	pressing chan []*nodev1.EvictionSignal
	// steps are those that wait neither for the runtime nor for the end of pods.
	steps *watchdog.Steps

	// The following fields are used only by Run: whether an action was taken, its BootTime, the time of the last reclaim,
	// and the last message of logOnce.
	acted       bool
	actedAt     time.Duration
	reclaimed   time.Time
	lastMessage string
}

// New returns an Evictor, which does nothing until Run.
func New(cfg Config) *Evictor {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Evictor{
		cfg: cfg, pressing: make(chan []*nodev1.EvictionSignal, 1), steps: watchdog.NewSteps(cfg.Clock, 0),
	}
}

// Stands returns why the loop of evictions stands still; nil if it turns, or waits for the runtime or the end of pods.
func (e *Evictor) Stands() error { return e.steps.Stands() }

// running returns the pods that may be evicted.
func (e *Evictor) running() (pods []*v1.Pod, err error) {
	e.steps.Do(func() { pods, err = e.cfg.Pods() })
	return pods, err
}

// Pressing sets the signals that are under pressure now; none if there is no pressure. It does not block. It must not
// be called concurrently.
func (e *Evictor) Pressing(signals []*nodev1.EvictionSignal) {
	select {
	case <-e.pressing:
	default:
	}
	e.pressing <- signals
}

// Run relieves pressure and holds pods to their limits until ctx ends. It returns the error of ctx.
func (e *Evictor) Run(ctx context.Context) error {
	var due <-chan time.Time
	if e.cfg.Limits {
		ticker := e.cfg.Clock.NewTicker(limitsPeriod)
		defer ticker.Stop()
		due = ticker.C()
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
			e.holdToLimits(ctx)
		case signals := <-e.pressing:
			e.round(ctx, signals)
		}
	}
}

// act records that an action was taken now, which makes earlier measurements stale.
func (e *Evictor) act() { e.acted, e.actedAt = true, e.cfg.BootTime() }

// isFresh reports whether a measurement was made after the last action. A time in the future, from before the clock was
// set back, is not fresh.
func (e *Evictor) isFresh(readAt time.Time) bool {
	if !e.acted {
		return true
	}
	now := e.cfg.Clock.Now()
	return readAt.After(now.Add(e.actedAt-e.cfg.BootTime())) && !readAt.After(now)
}

// freshOf returns the signals for which pods can be evicted, memory first and the others in their order. It leaves out
// measurements from before the last action.
func (e *Evictor) freshOf(signals []*nodev1.EvictionSignal) []*nodev1.EvictionSignal {
	fresh := slices.DeleteFunc(slices.Clone(signals), func(s *nodev1.EvictionSignal) bool {
		return resourceOf(s.GetSignal()) == "" || !e.isFresh(s.GetReadAt().AsTime())
	})
	isMemory := func(s *nodev1.EvictionSignal) bool { return resourceOf(s.GetSignal()) == v1.ResourceMemory }
	slices.SortStableFunc(fresh, func(a, b *nodev1.EvictionSignal) int { return trueFirst(isMemory(a), isMemory(b)) })
	return fresh
}

// round takes one action against the pressure.
func (e *Evictor) round(ctx context.Context, signals []*nodev1.EvictionSignal) {
	if len(signals) == 0 {
		e.lastMessage = ""
		return
	}
	fresh := e.freshOf(signals)
	if len(fresh) == 0 {
		return
	}
	if e.cfg.Limits && e.holdToLimits(ctx) {
		e.act()
		return // nodestatus measures whether that was enough.
	}
	signal := fresh[0]
	name := resourceOf(signal.GetSignal())
	e.cfg.Logger.InfoContext(ctx, "the node is under resource pressure and reclaims the resource", "signal", signal.GetSignal(),
		"available", signal.GetAvailable(), "threshold", signal.GetThreshold(), "hard", signal.GetHard())
	if e.cfg.Events != nil {
		e.cfg.Events.NodeWarning(ctx, eventThreshold, fmt.Sprintf("Attempting to reclaim %s", name))
	}
	if e.reclaim(ctx, signal.GetSignal()) {
		e.act()
		return // As above.
	}
	if uid, ended := e.evict(ctx, fresh); ended {
		e.awaitGone(ctx, uid)
		e.cfg.RemoveEvicted(ctx)
		e.act()
	}
}

// reclaim removes unused objects that use the resource under pressure. It reports whether it removed anything.
func (e *Evictor) reclaim(ctx context.Context, signal string) bool {
	containers, images := reclaimable(signal, e.cfg.Stats.Disks())
	if !containers && !images {
		return false
	}
	if !e.reclaimed.IsZero() && e.cfg.Clock.Since(e.reclaimed) < reclaimPeriod {
		return false
	}
	if containers {
		e.cfg.RemoveContainers(ctx)
	}
	if images {
		if err := e.cfg.RemoveImages(ctx); err != nil && ctx.Err() == nil {
			e.cfg.Logger.WarnContext(ctx, "unused images cannot be removed", telemetry.KeyError, err)
		}
	}
	e.reclaimed = e.cfg.Clock.Now()
	return true
}

// reclaimable returns the unused objects that are on the file system of a signal, as in the kubelet.
func reclaimable(signal string, disks stats.Disks) (containers, images bool) {
	name, _, _ := strings.Cut(signal, ".")
	switch {
	case name != diskNode && name != diskImages && name != diskContainers:
		return false, false
	case disks == stats.SplitDisks:
		return name != diskImages, name == diskImages
	case disks == stats.ImageDisk && name == diskNode:
		return false, false // The objects that could be removed are on another file system.
	}
	return true, true
}

// evict evicts the first suitable pod for the first of the signals, and returns its UID.
func (e *Evictor) evict(ctx context.Context, signals []*nodev1.EvictionSignal) (types.UID, bool) {
	signal := signals[0]
	summary, err := e.summary(ctx)
	if err != nil {
		e.logOnce(ctx, "no pod can be evicted because the resource usage of pods is unknown: "+err.Error())
		return "", false
	}
	pods, err := e.running()
	if err != nil {
		e.logOnce(ctx, "no pod can be evicted: "+err.Error())
		return "", false
	}
	candidates := make([]Candidate, 0, len(pods))
	for _, pod := range pods {
		candidate := Candidate{Pod: pod}
		if used := statsOf(summary, pod.UID); used != nil {
			usage := stats.UsageOf(used, pod)
			candidate.Usage = &usage
		}
		candidates = append(candidates, candidate)
	}
	Rank(signal.GetSignal(), e.cfg.Stats.Disks(), candidates)
	for _, met := range signals {
		e.cfg.Metrics.read(met.GetSignal(), max(e.cfg.Clock.Since(met.GetReadAt().AsTime()), 0))
	}
	for _, candidate := range candidates {
		pod := candidate.Pod
		if e.cfg.Spared(pod) {
			continue
		}
		text, annotations := message(signal, pod, statsOf(summary, pod.UID))
		eviction := podstore.Eviction{Reason: Reason, Message: text, Disruption: text, At: e.cfg.Clock.Now()}
		if !e.evictPod(ctx, pod, eviction, e.grace(pod, signal.GetHard()), annotations) {
			continue
		}
		e.cfg.Metrics.evicted(signal.GetSignal())
		e.lastMessage = ""
		return pod.UID, true
	}
	e.logOnce(ctx, "the node is under resource pressure and there is no pod to evict: see what else on the machine uses the resource")
	return "", false
}

// summary reads the resource usage of pods, with a timeout.
func (e *Evictor) summary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	return e.cfg.Stats.Summary(ctx)
}

// evictPod evicts a pod, and reports whether it succeeded.
func (e *Evictor) evictPod(
	ctx context.Context, pod *v1.Pod, eviction podstore.Eviction, grace int64, annotations map[string]string,
) bool {
	attrs := []any{telemetry.KeyPod, pod.Namespace + "/" + pod.Name, telemetry.KeyPodUID, string(pod.UID)}
	e.cfg.Logger.InfoContext(ctx, "evicting a pod", append(attrs, telemetry.KeyReason, eviction.Message)...)
	var err error
	e.steps.Do(func() { err = e.cfg.Evict(ctx, pod.UID, eviction, grace, annotations) })
	if err != nil {
		e.cfg.Logger.WarnContext(ctx, "a pod cannot be evicted; it is tried again if the reason persists",
			append(attrs, telemetry.KeyError, err)...)
		return false
	}
	return true
}

// grace returns the grace period of a pod in seconds.
func (e *Evictor) grace(pod *v1.Pod, hard bool) int64 {
	if hard {
		return hardGrace
	}
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		return min(*own, e.cfg.MaxGrace)
	}
	return e.cfg.MaxGrace
}

func statsOf(summary *statsv1alpha1.Summary, uid types.UID) *statsv1alpha1.PodStats {
	for i := range summary.Pods {
		if summary.Pods[i].PodRef.UID == string(uid) {
			return &summary.Pods[i]
		}
	}
	return nil
}

// logOnce logs why no pod can be evicted, unless the last message was the same.
func (e *Evictor) logOnce(ctx context.Context, text string) {
	if ctx.Err() == nil && e.lastMessage != text {
		e.lastMessage = text
		e.cfg.Logger.ErrorContext(ctx, text)
	}
}

// awaitGone waits until some pods are gone, or until their common timeout.
func (e *Evictor) awaitGone(ctx context.Context, uids ...types.UID) {
	timeout := e.cfg.Clock.NewTimer(goneTimeout)
	defer timeout.Stop()
	ticker := e.cfg.Clock.NewTicker(gonePeriod)
	defer ticker.Stop()
	for {
		e.steps.Do(func() { uids = slices.DeleteFunc(uids, e.cfg.Gone) })
		if len(uids) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timeout.C():
			e.cfg.Logger.WarnContext(ctx, "evicted pods take long to terminate; the next eviction does not wait for them",
				telemetry.KeyPodUID, uids)
			return
		case <-ticker.C():
		}
	}
}
