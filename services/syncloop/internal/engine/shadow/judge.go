package shadow

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/podstore"
)

const (
	// Period is the interval of comparisons.
	Period = 500 * time.Millisecond
	// eventKilling is the reason of the event of a container that is killed.
	eventKilling = "Killing"
)

// Difference is a decision of the shadow that is not that of the syncloop that runs.
type Difference struct {
	// Time is when it had lasted long enough.
	Time      time.Time `json:"time"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       string    `json:"uid"`
	Action    Action    `json:"action"`
	// Shadow and Running say what each of them does.
	Shadow  string `json:"shadow"`
	Running string `json:"running"`
}

// Summary counts what was compared.
type Summary struct {
	// Pods is the number of pods.
	Pods int `json:"pods"`
	// Decisions counts the different actions that the shadow would have taken on them, and Differences those reported.
	Decisions   map[Action]int `json:"decisions"`
	Differences map[Action]int `json:"differences"`
	// Followed is the number of evictions that the shadow took over, because it does not know their causes.
	Followed int `json:"evictionsFollowed"`
	// Compared is true after both sides were known. Without it nothing was compared.
	Compared bool `json:"compared"`
}

// Total returns the number of differences.
func (s Summary) Total() int {
	n := 0
	for _, count := range s.Differences {
		n += count
	}
	return n
}

// judge compares the shadow with the syncloop that runs, again and again. A difference counts after it has lasted for a
// while, because the two never act at the same moment.
type judge struct {
	clock   clock.WithTicker
	logger  *slog.Logger
	wait    time.Duration
	plans   *plans
	answers *answers
	// pods returns the pods of the shadow; an error until they are known. evict ends a pod of the shadow.
	pods   func() ([]*enginev1.Pod, error)
	evict  func(uid types.UID, eviction podstore.Eviction)
	report func(Difference)
	// started is called when the comparison begins, and compared after each one. paused reports whether the syncloop that
	// runs is away, so that what it does is not known.
	started, compared func()
	paused            func() bool

	// synced is closed when the pods of the syncloop that runs are known.
	synced chan struct{}

	mu      sync.Mutex
	running map[types.UID]*side
	// known is true after the first snapshot of the syncloop that runs, and up while it is connected.
	known, up bool
	// ending has the pods that were being ended when the shadow began. Their source may name them again already, and the
	// shadow does not know of the end. They are compared when it is over.
	ending   map[types.UID]bool
	observed map[types.UID]*lifecyclev1.PodStatus
	existing map[types.UID]*existing
	kills    map[types.UID]map[string]string
	// begun is true after the first snapshot of pleg, and comparing after the first comparison.
	begun, comparing bool
	// seen counts for each difference the comparisons in which it was there, and told has those that were reported.
	seen map[types.UID]map[string]int
	told map[types.UID]map[string]bool
	// counted has the pods that were compared, followed the evictions that were taken over.
	counted  map[types.UID]bool
	followed map[types.UID]bool
	counts   map[Action]int
}

// observe records a message of pleg's stream when the shadow gets it.
func (j *judge) observe(m stream.Message[*lifecyclev1.Event]) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if m.Kind == stream.KindSynced {
		j.begun = true
	}
	if m.Kind != stream.KindSnapshot && m.Kind != stream.KindDelta {
		return
	}
	uid, status := types.UID(m.Key), m.Value.GetStatus()
	if status == nil {
		delete(j.observed, uid)
		return
	}
	if j.existing[uid] == nil {
		j.existing[uid] = newExisting()
	}
	j.existing[uid].see(status, !j.begun)
	j.observed[uid] = status
	if m.Removed {
		delete(j.observed, uid)
	}
}

// follow follows the pods of the syncloop that runs.
func (j *judge) follow(ctx context.Context, source stream.Source[*enginev1.Pod]) error {
	return stream.Follow(ctx, stream.FollowConfig[*enginev1.Pod]{
		Name: "syncloop", Source: source, Clock: j.clock, Logger: j.logger,
		Handle: func(c stream.Change[*enginev1.Pod]) {
			uid := types.UID(c.Key)
			if c.Op == stream.OpRemove {
				j.answers.drop(uid)
				j.mu.Lock()
				delete(j.running, uid)
				j.mu.Unlock()
				return
			}
			s := sideOf(c.New)
			if s == nil {
				j.logger.Error("syncloop sent a pod that cannot be read: run the same version of both", "key", c.Key)
				return
			}
			j.mu.Lock()
			j.running[uid] = s
			j.mu.Unlock()
			j.answers.learn(s.pod)
		},
		Synced: func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.up = true
			if !j.known {
				j.known = true
				close(j.synced)
			}
		},
		Connected: func(up bool, _ error) {
			if !up {
				j.mu.Lock()
				defer j.mu.Unlock()
				j.up = false
			}
		},
	})
}

// followEvents follows what the syncloop that runs tells of the containers that it kills.
func (j *judge) followEvents(ctx context.Context, source stream.Source[*enginev1.PodEvent]) error {
	return stream.Follow(ctx, stream.FollowConfig[*enginev1.PodEvent]{
		Name: "syncloop's events", Source: source, Clock: j.clock, Logger: j.logger,
		Handle: func(c stream.Change[*enginev1.PodEvent]) {
			var event v1.Event
			if c.Op == stream.OpRemove || c.FromSnapshot || event.Unmarshal(c.New.GetEvent()) != nil {
				return
			}
			name, text := containerOf(event.InvolvedObject.FieldPath), event.Message
			if event.Reason != eventKilling || name == "" || !isOwnDecision(text) {
				return
			}
			j.mu.Lock()
			defer j.mu.Unlock()
			uid := event.InvolvedObject.UID
			if j.kills[uid] == nil {
				j.kills[uid] = map[string]string{}
			}
			j.kills[uid][name] = text
		},
	})
}

// containerOf returns the container in "spec.containers{NAME}".
func containerOf(path string) string {
	_, name, _ := strings.Cut(path, "{")
	return strings.TrimSuffix(name, "}")
}

// isOwnDecision reports whether a container was killed for a reason that the shadow can have, too: not for a probe or a
// hook, and not because its pod ends.
func isOwnDecision(message string) bool {
	return strings.HasPrefix(message, "Container ") && !strings.Contains(message, "probe")
}

// sideOf decodes a pod; nil if it cannot be read.
func sideOf(p *enginev1.Pod) *side {
	pod := &v1.Pod{}
	if err := pod.Unmarshal(p.GetPod()); err != nil {
		return nil
	}
	return &side{state: p.GetWorkerState(), pod: pod, source: p.GetSource()}
}

// run compares until ctx ends.
func (j *judge) run(ctx context.Context) error {
	ticker := j.clock.NewTicker(Period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
			j.compare()
			j.compared()
		}
	}
}

// compare compares all pods once, and reports what has differed for long enough.
func (j *judge) compare() {
	listed, err := j.pods()
	if err != nil {
		return // the shadow does not know its pods yet
	}
	if j.begin(); j.isAway() {
		return
	}
	ours := make(map[types.UID]*side, len(listed))
	for _, p := range listed {
		if s := sideOf(p); s != nil {
			ours[s.pod.UID] = s
		}
	}
	for uid, why := range j.evictedElsewhere(ours) {
		j.evict(uid, why)
	}
	for _, d := range j.lasting(ours) {
		j.report(d)
	}
}

// begin tells once that the comparison has begun.
func (j *judge) begin() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.known && j.begun && !j.comparing {
		j.comparing = true
		j.started()
	}
}

// isAway reports whether the syncloop that runs is away. Differences count again from the beginning when it is back.
func (j *judge) isAway() bool {
	paused := j.paused()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.up && !paused {
		return false
	}
	clear(j.seen)
	return true
}

// evictedElsewhere returns the pods that the syncloop that runs has evicted for a cause that the shadow does not know.
func (j *judge) evictedElsewhere(ours map[types.UID]*side) map[types.UID]podstore.Eviction {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := map[types.UID]podstore.Eviction{}
	for uid, theirs := range j.running {
		s, status := ours[uid], &theirs.pod.Status
		if s == nil || s.pod.Status.Phase == v1.PodFailed || status.Phase != v1.PodFailed || status.Reason == "" ||
			theirs.refused() || theirs.evicted() {
			continue
		}
		out[uid] = podstore.Eviction{Reason: status.Reason, Message: status.Message}
		j.followed[uid] = true
	}
	return out
}

// lasting returns the differences that have lasted for long enough and were not reported.
func (j *judge) lasting(ours map[types.UID]*side) []Difference {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.comparing {
		return nil
	}
	now := j.clock.Now()
	uids := map[types.UID]bool{}
	for uid := range ours {
		uids[uid] = true
	}
	for uid := range j.running {
		uids[uid] = true
	}
	var out []Difference
	for uid := range uids {
		j.counted[uid] = true
		if j.stillEnds(uid) {
			continue
		}
		present := j.differences(uid, ours[uid])
		out = append(out, j.lastingOf(uid, ours[uid], present, now)...)
	}
	for uid := range j.seen {
		if !uids[uid] {
			j.forget(uid)
		}
	}
	slices.SortFunc(out, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Shadow, b.Shadow))
	})
	return out
}

// stillEnds reports whether a pod is being ended since before the shadow. Called with mu held.
func (j *judge) stillEnds(uid types.UID) bool {
	if !j.ending[uid] {
		return false
	}
	if s := j.running[uid]; s != nil && s.state == enginev1.WorkerState_WORKER_STATE_TERMINATING {
		return true
	}
	delete(j.ending, uid)
	return false
}

// differences returns the differences of a pod at this moment. Called with mu held.
func (j *judge) differences(uid types.UID, ours *side) []found {
	was := j.existing[uid]
	if was == nil {
		was = newExisting()
	}
	return differ(sides{
		shadow: ours, running: j.running[uid], plan: j.plans.of(uid), observed: j.observed[uid],
		existing: was, kills: j.kills[uid],
	})
}

// lastingOf returns the differences of a pod that have lasted. It counts comparisons and not the time, so that a
// process that was suspended does not take the first moment after it for a lasting one. Called with mu held.
func (j *judge) lastingOf(uid types.UID, ours *side, present []found, now time.Time) []Difference {
	before, told := j.seen[uid], j.told[uid]
	seen := make(map[string]int, len(present))
	var out []Difference
	for _, f := range present {
		seen[f.key] = before[f.key] + 1
		if told[f.key] || time.Duration(before[f.key])*Period < j.wait {
			continue
		}
		if told == nil {
			told = map[string]bool{}
			j.told[uid] = told
		}
		told[f.key] = true
		j.counts[f.action]++
		pod := podOf(ours, j.running[uid])
		out = append(out, Difference{
			Time: now, Namespace: pod.Namespace, Pod: pod.Name, UID: string(uid), Action: f.action,
			Shadow: f.shadow, Running: f.running,
		})
	}
	j.seen[uid] = seen
	return out
}

// forget drops a pod that neither side has. Called with mu held.
func (j *judge) forget(uid types.UID) {
	delete(j.seen, uid)
	delete(j.told, uid)
	delete(j.kills, uid)
	if j.observed[uid] == nil {
		delete(j.existing, uid)
		j.plans.forget(uid)
	}
}

func podOf(ours, theirs *side) *v1.Pod {
	if ours != nil {
		return ours.pod
	}
	return theirs.pod
}

// summary returns the counts so far.
func (j *judge) summary() Summary {
	decisions := j.plans.counts()
	j.mu.Lock()
	defer j.mu.Unlock()
	return Summary{
		Pods: len(j.counted), Decisions: decisions, Differences: maps.Clone(j.counts), Followed: len(j.followed),
		Compared: j.comparing,
	}
}
