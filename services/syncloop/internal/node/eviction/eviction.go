// Package eviction makes room on the node when something of it has run short. What has, nodestatus says: it reads what is left and
// knows the thresholds; this package does what helps against it. For the disk it first removes what nobody needs, ended containers and
// images. Then it ends pods, one at a time, the one first that [Rank] puts first, and waits until that is gone and nodestatus has
// read again.
//
// Before that, and every now and then while nothing is short, it looks whether a pod takes more of the node's disk than its own limits
// allow (limits.go), and ends those.
//
// Whoever is ended is Failed with the reason Evicted, as by a kubelet, and stays so: see package evictionbook. All of it goes through the
// one that EvictPod uses, too.
package eviction

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/clock"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
	"github.com/quartet-node/quartet/services/syncloop/internal/node/stats"
)

const (
	// Reason is the status.reason of a pod that is ended, and that of its event: the kubelet's.
	Reason = "Evicted"
	// eventThreshold is the event of the node when pods have to go.
	eventThreshold = "EvictionThresholdMet"
	// hardGrace is how many seconds containers have to stop when a hard threshold is crossed, as in the kubelet.
	hardGrace = 1
	// goneTimeout is how long a pod that is ended may take before the next one is, and gonePeriod how often it is looked: the kubelet's.
	goneTimeout = 30 * time.Second
	gonePeriod  = time.Second
	// reclaimPeriod is how long what nobody needs is not removed again: there is little new.
	reclaimPeriod = time.Minute
	// statsTimeout bounds the question for what pods use.
	statsTimeout = 10 * time.Second
)

// Config is what an Evictor needs.
type Config struct {
	// Stats says what pods use. Required.
	Stats interface {
		Summary(ctx context.Context) (*statsv1alpha1.Summary, error)
		DedicatedImageFS() bool
	}
	// Limits tells whether pods are held to their limits of the disk: localStorageCapacityIsolation of the KubeletConfiguration.
	Limits bool
	// Pods gives the pods that may be ended: those that run, with their status. Required.
	Pods func() ([]*v1.Pod, error)
	// Spared tells whether a pod is never ended for others. Required.
	Spared func(pod *v1.Pod) bool
	// Evict ends a pod for good; grace is in seconds, and the annotations are the event's. Required.
	Evict func(ctx context.Context, uid types.UID, eviction podstore.Eviction, grace int64, annotations map[string]string) error
	// Gone tells whether nothing of a pod runs any more, and it holds nothing of the machine. Required.
	Gone func(uid types.UID) bool
	// RemoveContainers and RemoveImages remove what nobody needs on a node that is short of disk, and RemoveEvicted removes the ended
	// containers of pods that were evicted. Required.
	RemoveContainers, RemoveEvicted func(ctx context.Context)
	RemoveImages                    func(ctx context.Context) error
	// Events tells of the node: *podevents.Recorder. Nil is for nobody to read.
	Events interface {
		NodeWarning(ctx context.Context, reason, message string)
	}
	// MaxGrace is how many seconds containers have at most when a soft threshold is crossed: evictionMaxPodGracePeriod of the
	// KubeletConfiguration.
	MaxGrace int64
	// Clock is the time, and BootTime how long the machine runs, which nobody sets: what was read is told by the clock, and the clock
	// may have been set since. Required.
	Clock    clock.WithTicker
	BootTime func() time.Duration
	Logger   *slog.Logger
	// Metrics counts; nil counts nothing.
	Metrics *Metrics
}

// Evictor makes room. Make it with New.
type Evictor struct {
	cfg Config
	// pressing has the latest word on what presses and no other.
	pressing chan []*nodev1.EvictionSignal

	// Of Run alone: whether something was done, when that was by BootTime, when what nobody needs was removed last, and what was told.
	acted     bool
	actedAt   time.Duration
	reclaimed time.Time
	told      string
}

// New makes an Evictor. It does nothing before Run.
func New(cfg Config) *Evictor {
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	return &Evictor{cfg: cfg, pressing: make(chan []*nodev1.EvictionSignal, 1)}
}

// Pressing says what presses on the node now, nothing when nothing does. It does not wait. Only one may call it at a time.
func (e *Evictor) Pressing(signals []*nodev1.EvictionSignal) {
	select {
	case <-e.pressing:
	default:
	}
	e.pressing <- signals
}

// Run makes room and holds pods to their limits until ctx ends, and returns its error.
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

// act notes that something was done now, so that what was read before says nothing any more.
func (e *Evictor) act() { e.acted, e.actedAt = true, e.cfg.BootTime() }

// isFresh tells whether something was read after something was done about it. A time that is still to come is one by the clock before it
// was set back.
func (e *Evictor) isFresh(readAt time.Time) bool {
	if !e.acted {
		return true
	}
	now := e.cfg.Clock.Now()
	return readAt.After(now.Add(e.actedAt-e.cfg.BootTime())) && !readAt.After(now)
}

// freshOf are the signals that pods can be ended for, memory before anything else and the others in their order. What was read before
// something was done about it says nothing of now.
func (e *Evictor) freshOf(signals []*nodev1.EvictionSignal) []*nodev1.EvictionSignal {
	fresh := slices.DeleteFunc(slices.Clone(signals), func(s *nodev1.EvictionSignal) bool {
		return resourceOf(s.GetSignal()) == "" || !e.isFresh(s.GetReadAt().AsTime())
	})
	isMemory := func(s *nodev1.EvictionSignal) bool { return resourceOf(s.GetSignal()) == v1.ResourceMemory }
	slices.SortStableFunc(fresh, func(a, b *nodev1.EvictionSignal) int { return trueFirst(isMemory(a), isMemory(b)) })
	return fresh
}

// round does one thing about what presses.
func (e *Evictor) round(ctx context.Context, signals []*nodev1.EvictionSignal) {
	if len(signals) == 0 {
		e.told = ""
		return
	}
	fresh := e.freshOf(signals)
	if len(fresh) == 0 {
		return
	}
	if e.cfg.Limits && e.holdToLimits(ctx) {
		e.act()
		return // nodestatus says whether that was enough
	}
	signal := fresh[0]
	name := resourceOf(signal.GetSignal())
	e.cfg.Logger.InfoContext(ctx, "the node has run short of something and makes room", "signal", signal.GetSignal(),
		"available", signal.GetAvailable(), "threshold", signal.GetThreshold(), "hard", signal.GetHard())
	if e.cfg.Events != nil {
		e.cfg.Events.NodeWarning(ctx, eventThreshold, fmt.Sprintf("Attempting to reclaim %s", name))
	}
	if e.reclaim(ctx, signal.GetSignal()) {
		e.act()
		return // as above
	}
	if uid, ended := e.evict(ctx, fresh); ended {
		e.untilGone(ctx, uid)
		e.cfg.RemoveEvicted(ctx)
		e.act()
	}
}

// reclaim removes what nobody needs and takes room of what is short; it returns whether it did.
func (e *Evictor) reclaim(ctx context.Context, signal string) bool {
	switch signal {
	case signalNodeFS, signalNodeInodes:
		if e.cfg.Stats.DedicatedImageFS() {
			return false // what could be removed is on another file system
		}
	case signalImageFS, signalImageInodes:
	default:
		return false
	}
	if !e.reclaimed.IsZero() && e.cfg.Clock.Since(e.reclaimed) < reclaimPeriod {
		return false
	}
	e.cfg.RemoveContainers(ctx)
	if err := e.cfg.RemoveImages(ctx); err != nil && ctx.Err() == nil {
		e.cfg.Logger.WarnContext(ctx, "images that nobody uses cannot be removed to make room", telemetry.KeyError, err)
	}
	e.reclaimed = e.cfg.Clock.Now()
	return true
}

// evict ends the first pod that can be, for the first of the signals, and returns which.
func (e *Evictor) evict(ctx context.Context, signals []*nodev1.EvictionSignal) (types.UID, bool) {
	signal := signals[0]
	summary, err := e.summary(ctx)
	if err != nil {
		e.once(ctx, "nobody can be evicted before it is known what pods use: "+err.Error())
		return "", false
	}
	pods, err := e.cfg.Pods()
	if err != nil {
		e.once(ctx, "nobody can be evicted: "+err.Error())
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
	Rank(signal.GetSignal(), e.cfg.Stats.DedicatedImageFS(), candidates)
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
		if !e.end(ctx, pod, eviction, e.grace(pod, signal.GetHard()), annotations) {
			continue
		}
		e.cfg.Metrics.evicted(signal.GetSignal())
		e.told = ""
		return pod.UID, true
	}
	e.once(ctx, "something of the node has run short and there is no pod to evict: see what else uses it")
	return "", false
}

// summary asks what pods use, and does not wait long for it.
func (e *Evictor) summary(ctx context.Context) (*statsv1alpha1.Summary, error) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	return e.cfg.Stats.Summary(ctx)
}

// end ends a pod, and returns whether it could.
func (e *Evictor) end(ctx context.Context, pod *v1.Pod, eviction podstore.Eviction, grace int64, annotations map[string]string) bool {
	which := []any{telemetry.KeyPod, pod.Namespace + "/" + pod.Name, telemetry.KeyPodUID, string(pod.UID)}
	e.cfg.Logger.InfoContext(ctx, "evicting a pod", append(which, telemetry.KeyReason, eviction.Message)...)
	if err := e.cfg.Evict(ctx, pod.UID, eviction, grace, annotations); err != nil {
		e.cfg.Logger.WarnContext(ctx, "a pod cannot be evicted; it is tried again when something still makes it go", append(which, telemetry.KeyError, err)...)
		return false
	}
	return true
}

// grace is how many seconds the containers of a pod have to stop.
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

// once logs what keeps pods from being evicted, when it is not what was said last.
func (e *Evictor) once(ctx context.Context, text string) {
	if ctx.Err() == nil && e.told != text {
		e.told = text
		e.cfg.Logger.ErrorContext(ctx, text)
	}
}

// untilGone waits until nothing of some pods runs any more, or they have taken too long together.
func (e *Evictor) untilGone(ctx context.Context, uids ...types.UID) {
	timeout := e.cfg.Clock.NewTimer(goneTimeout)
	defer timeout.Stop()
	ticker := e.cfg.Clock.NewTicker(gonePeriod)
	defer ticker.Stop()
	for {
		uids = slices.DeleteFunc(uids, e.cfg.Gone)
		if len(uids) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timeout.C():
			e.cfg.Logger.WarnContext(ctx, "pods that were evicted take long to end; the next ones do not wait for them", telemetry.KeyPodUID, uids)
			return
		case <-ticker.C():
		}
	}
}
