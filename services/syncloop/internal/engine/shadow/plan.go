package shadow

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/resizes"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/decide"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podstatus"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/resize"
	"github.com/quartet-node/quartet/services/syncloop/internal/runtime/executor"
)

// reasonCrashLoop is the reason of a container in its crash back-off.
const reasonCrashLoop = "CrashLoopBackOff"

// intent is an action that the shadow would take.
type intent struct {
	action Action
	// name is the container; empty for an action on the whole pod.
	name string
	// object is the ID of the container or sandbox to kill, or of the newest one before that to create; empty for none.
	object string
	// text says what the shadow would do.
	text string
}

// key identifies an intent, and what fulfills it.
func (i intent) key() string { return string(i.action) + "/" + i.name + "/" + i.object }

// plan is what the shadow would do with a pod.
type plan struct {
	// now has the intents of the last decision, and ever the keys of all decisions.
	now  []intent
	ever map[string]bool
	// kills has the names of the containers that the shadow has wanted to kill.
	kills map[string]bool
}

// plans are the plans of all pods.
type plans struct {
	mu        sync.Mutex
	pods      map[types.UID]*plan
	decisions map[Action]int
}

func newPlans() *plans { return &plans{pods: map[types.UID]*plan{}, decisions: map[Action]int{}} }

// set replaces the intents of a pod.
func (p *plans) set(uid types.UID, now []intent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.pods[uid]
	if one == nil {
		one = &plan{ever: map[string]bool{}, kills: map[string]bool{}}
		p.pods[uid] = one
	}
	one.now = now
	for _, i := range now {
		if i.action == KillContainer {
			one.kills[i.name] = true
		}
		if !one.ever[i.key()] {
			one.ever[i.key()] = true
			p.decisions[i.action]++
		}
	}
}

// of returns a copy of the plan of a pod.
func (p *plans) of(uid types.UID) plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := plan{ever: map[string]bool{}, kills: map[string]bool{}}
	if one := p.pods[uid]; one != nil {
		out.now = one.now
		for key := range one.ever {
			out.ever[key] = true
		}
		for name := range one.kills {
			out.kills[name] = true
		}
	}
	return out
}

// forget drops the plan of a pod.
func (p *plans) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, uid)
}

// counts returns the number of different intents of each action.
func (p *plans) counts() map[Action]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[Action]int, len(p.decisions))
	for action, n := range p.decisions {
		out[action] = n
	}
	return out
}

// planner is the runtime of the shadow's workers. It decides as package executor does, and notes the decisions instead
// of carrying them out.
type planner struct {
	clock      clock.PassiveClock
	backoffMax time.Duration
	answers    *answers
	resizes    *resizes.Book
	plans      *plans
}

// SyncPod implements podworkers.Runtime.
func (p *planner) SyncPod(_ context.Context, pod *v1.Pod, observed *lifecyclev1.PodStatus) (executor.Result, error) {
	facts := decide.Facts{Now: p.clock.Now(), BackoffMax: p.backoffMax, Startup: p.answers.Startup}
	facts.Actuated, facts.Resized = p.resizes.Actuated(pod)
	actions := decide.Pod(pod, observed, facts)
	p.plans.set(pod.UID, intents(pod, observed, actions))
	p.resize(pod, observed, actions)
	var result executor.Result
	for _, wait := range actions.Wait {
		if result.Reasons == nil {
			result.Reasons = map[string]podstatus.Reason{}
		}
		result.Reasons[wait.Container.Name] = podstatus.Reason{Reason: reasonCrashLoop}
		if left := wait.Until.Sub(facts.Now); result.RetryAfter == 0 || left < result.RetryAfter {
			result.RetryAfter = left
		}
	}
	return result, nil
}

// resize records that the containers have the resources that they would be given.
func (p *planner) resize(pod *v1.Pod, observed *lifecyclev1.PodStatus, actions decide.Actions) {
	if actions.Resize.Nothing() {
		return
	}
	// The book is in memory, so it cannot fail.
	_ = p.resizes.Actuate(pod, func(a *resize.Actuated) {
		a.Unfinished = false
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			id := podview.Latest(observed, c.Name).GetId()
			a.Note(observed, id, resize.AmountsOf(pod.Spec.Resources, c.Resources))
		}
	})
}

// KillPod implements podworkers.Runtime. The pod goes on running until the syncloop that runs ends it.
func (p *planner) KillPod(_ context.Context, pod *v1.Pod, _ *lifecyclev1.PodStatus, grace int64) error {
	p.plans.set(pod.UID, []intent{{action: EndPod, text: fmt.Sprintf("end it within %d s", grace)}})
	return nil
}

// CleanUpPod implements podworkers.Runtime.
func (p *planner) CleanUpPod(_ context.Context, pod *v1.Pod, _ *lifecyclev1.PodStatus) error {
	p.plans.set(pod.UID, []intent{{action: RemovePod, text: "remove what is left of it"}})
	return nil
}

// ReleasePod implements podworkers.Runtime. The shadow's pods hold nothing.
func (p *planner) ReleasePod(_ context.Context, pod *v1.Pod) error {
	p.plans.set(pod.UID, nil)
	return nil
}

// PruneContainers implements podworkers.Runtime. The removal of ended containers is not compared.
func (p *planner) PruneContainers(context.Context, *lifecyclev1.PodStatus, int) error { return nil }

// intents returns the intents of a decision.
func intents(pod *v1.Pod, observed *lifecyclev1.PodStatus, a decide.Actions) []intent {
	var out []intent
	if a.StopAll && !a.CreateSandbox {
		out = append(out, intent{action: EndPod, text: "stop all its containers"})
	}
	if a.CreateSandbox {
		text := fmt.Sprintf("create its sandbox, attempt %d", a.Attempt)
		if names := volumesOf(pod); names != "" {
			text = "mount " + names + "; " + text
		}
		out = append(out, intent{action: CreateSandbox, object: newestSandbox(observed), text: text})
	}
	for _, k := range a.Kill {
		out = append(out, intent{action: KillContainer, name: k.Name, object: k.ContainerID, text: "kill: " + k.Message})
	}
	for _, s := range a.Start {
		out = append(out, intent{
			action: StartContainer, name: s.Container.Name, object: podview.Latest(observed, s.Container.Name).GetId(),
			text: fmt.Sprintf("start %s, restart count %d", s.Container.Name, s.Restart.Count),
		})
	}
	return out
}

// volumesOf returns the volumes of a pod that are mounted before it starts; empty if it has none.
func volumesOf(pod *v1.Pod) string {
	names := make([]string, 0, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		names = append(names, pod.Spec.Volumes[i].Name)
	}
	return strings.Join(names, ", ")
}

func newestSandbox(observed *lifecyclev1.PodStatus) string {
	if s := observed.GetSandboxes(); len(s) > 0 {
		return s[0].GetId()
	}
	return ""
}
