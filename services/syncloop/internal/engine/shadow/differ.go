package shadow

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/admission"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/podview"
)

// Action is a kind of decision.
type Action string

// The actions. Only the first that differs of a pod is reported, because the later ones follow from it.
const (
	// Admit is the admission of a pod, or its refusal.
	Admit Action = "admit"
	// Evict is the end of a pod with a reason: preemption, or a deadline.
	Evict Action = "evict"
	// EndPod is the end of a pod.
	EndPod Action = "end"
	// RemovePod is the removal of what an ended pod has left. It is counted and not compared.
	RemovePod Action = "remove"
	// CreateSandbox is the start of a pod: mounts and the sandbox.
	CreateSandbox Action = "sandbox"
	// KillContainer is the end of a container whose pod continues.
	KillContainer Action = "kill"
	// StartContainer is the creation and start of a container.
	StartContainer Action = "start"
	// Status is the status of the pod.
	Status Action = "status"
)

// Actions returns all actions in the order in which they are compared.
func Actions() []Action {
	return []Action{Admit, Evict, EndPod, RemovePod, CreateSandbox, KillContainer, StartContainer, Status}
}

// reasonPreempting and reasonDeadline are the reasons of pods that the loop evicts by itself. The shadow does not know
// the causes of other evictions: the use of memory and disks, a call of EvictPod, the shutdown of the machine.
const (
	reasonPreempting = "Preempting"
	reasonDeadline   = "DeadlineExceeded"
)

// side is a pod as the shadow or the syncloop that runs has it.
type side struct {
	state  enginev1.WorkerState
	pod    *v1.Pod
	source string
}

func (s *side) refused() bool {
	return s != nil && s.pod.Status.Phase == v1.PodFailed &&
		strings.HasPrefix(s.pod.Status.Message, admission.RejectedPrefix)
}

func (s *side) evicted() bool {
	reason := s.reason()
	return reason == reasonPreempting || reason == reasonDeadline
}

func (s *side) reason() string {
	if s == nil {
		return ""
	}
	return s.pod.Status.Reason
}

// ends reports whether the pod is being ended, or has ended.
func (s *side) ends() bool {
	return s == nil || s.state >= enginev1.WorkerState_WORKER_STATE_TERMINATING
}

// doing says in a few words what is done with the pod.
func (s *side) doing() string {
	switch {
	case s == nil:
		return "does not have it"
	case s.refused():
		return "refuse it: " + s.reason() + ": " + strings.TrimPrefix(s.pod.Status.Message, admission.RejectedPrefix)
	case s.evicted():
		return "end it: " + s.reason()
	case !s.ends():
		return "run it"
	case s.pod.DeletionTimestamp != nil:
		return "end it, because it is being deleted"
	case s.pod.Status.Phase == v1.PodSucceeded, s.pod.Status.Phase == v1.PodFailed:
		return "leave it, because it has ended: " + string(s.pod.Status.Phase)
	default:
		return "end it, because no source names it"
	}
}

// existing has the containers and sandboxes of a pod that were there before the shadow, and the ones before each new
// one.
type existing struct {
	// before has the IDs of those of the beginning.
	before map[string]bool
	// after maps the ID of each later one to the newest one of its name at that time; empty for the first.
	after map[string]string
	// newest has the newest ID of each container's name, and that of the sandboxes under the empty name. One that is gone
	// is not in it: a decision after that is about a pod without it.
	newest map[string]string
	// ended has the IDs of those that were seen to have ended, or were gone. What takes the place of another one counts as
	// there before: nobody could decide about it who has not seen the end.
	ended map[string]bool
}

func newExisting() *existing {
	return &existing{
		before: map[string]bool{}, after: map[string]string{}, newest: map[string]string{}, ended: map[string]bool{},
	}
}

// see records an observation. With first, everything in it was there before.
func (e *existing) see(observed *lifecyclev1.PodStatus, first bool) {
	present := map[string]bool{}
	note := func(name, id string) {
		present[id] = true
		if _, known := e.after[id]; known {
			return
		}
		last := e.newest[name]
		e.before[id] = first || (last != "" && !e.ended[last])
		e.after[id], e.newest[name] = last, id
	}
	for _, s := range slices.Backward(observed.GetSandboxes()) { // the oldest first
		note("", s.GetId())
	}
	for _, c := range slices.Backward(observed.GetContainers()) {
		note(c.GetName(), c.GetId())
	}
	for _, s := range observed.GetSandboxes() {
		e.ended[s.GetId()] = !podview.Ready(s)
	}
	for _, c := range observed.GetContainers() {
		e.ended[c.GetId()] = !podview.Alive(c)
	}
	for id := range e.after {
		if !present[id] {
			e.ended[id] = true
		}
	}
	maps.DeleteFunc(e.newest, func(_, id string) bool { return !present[id] })
}

// sides is all that is known of a pod.
type sides struct {
	// shadow and running are nil if they do not have the pod.
	shadow, running *side
	plan            plan
	observed        *lifecyclev1.PodStatus
	existing        *existing
	// kills has what the syncloop that runs has told of containers that it kills, by name.
	kills map[string]string
}

// found is a difference that may be one only of the moment.
type found struct {
	// key identifies it among those of its pod.
	key             string
	action          Action
	shadow, running string
}

// differ returns the differences between the shadow and the syncloop that runs in a pod. It is pure.
func differ(s sides) []found {
	if s.shadow == nil && s.running == nil {
		return nil
	}
	if s.shadow.refused() != s.running.refused() || (s.shadow.refused() && s.shadow.reason() != s.running.reason()) {
		if s.shadow != nil && s.running != nil {
			return one(Admit, s)
		}
	}
	if s.shadow.refused() && s.running.refused() {
		return nil
	}
	if s.shadow != nil && s.running != nil && s.shadow.evicted() != s.running.evicted() {
		return one(Evict, s)
	}
	if s.shadow.ends() != s.running.ends() {
		return one(EndPod, s)
	}
	if s.shadow.ends() {
		return s.ended()
	}
	out := slices.Concat(s.sandbox(), s.killed(), s.started())
	if len(out) > 0 {
		return out
	}
	return s.status()
}

func one(action Action, s sides) []found {
	return []found{{key: string(action), action: action, shadow: s.shadow.doing(), running: s.running.doing()}}
}

// ended compares the phases of pods that have ended on both sides. What is left of them is not compared: the shadow has
// removed it in thought as soon as nothing runs.
func (s sides) ended() []found {
	const over = enginev1.WorkerState_WORKER_STATE_TERMINATED
	if s.shadow == nil || s.running == nil || s.shadow.state != over || s.running.state != over {
		return nil
	}
	ours, theirs := s.shadow.pod.Status.Phase, s.running.pod.Status.Phase
	if ours == theirs {
		return nil
	}
	return []found{{key: string(Status), action: Status, shadow: "phase=" + string(ours), running: "phase=" + string(theirs)}}
}

// sandbox compares the creation of sandboxes. A sandbox that only the shadow would create is no difference here: the
// other wants to run the pod, too, and waits for something that the shadow does not see, such as a slow mount.
func (s sides) sandbox() []found {
	var out []found
	for _, box := range s.observed.GetSandboxes() {
		i := intent{action: CreateSandbox, object: s.existing.after[box.GetId()]}
		if s.existing.before[box.GetId()] || s.plan.ever[i.key()] {
			continue
		}
		out = append(out, found{
			key: i.key(), action: CreateSandbox, shadow: "create no sandbox",
			running: fmt.Sprintf("has created a sandbox, attempt %d", box.GetAttempt()),
		})
	}
	return out
}

// killed compares the ends of containers.
func (s sides) killed() []found {
	var out []found
	for _, i := range s.plan.now {
		if i.action != KillContainer || s.kills[i.name] != "" {
			continue // the container has its grace period
		}
		for _, c := range s.observed.GetContainers() {
			if c.GetId() == i.object && podview.Alive(c) {
				out = append(out, found{key: i.key(), action: KillContainer, shadow: i.text, running: "keeps " + i.name})
			}
		}
	}
	for name, text := range s.kills {
		if !s.plan.kills[name] {
			out = append(out, found{
				key: "told/" + name + "/" + text, action: KillContainer, shadow: "keep " + name, running: "kills: " + text,
			})
		}
	}
	return out
}

// started compares the starts of containers.
func (s sides) started() []found {
	var out []found
	for _, i := range s.plan.now {
		if i.action != StartContainer || podview.Latest(s.observed, i.name).GetId() != i.object {
			continue
		}
		if has := doesNotStart(s.running.pod, i.name); has != "" {
			out = append(out, found{key: i.key(), action: StartContainer, shadow: i.text, running: has})
		}
	}
	for _, c := range s.observed.GetContainers() {
		i := intent{action: StartContainer, name: c.GetName(), object: s.existing.after[c.GetId()]}
		made := c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
		if s.existing.before[c.GetId()] || made || s.plan.ever[i.key()] {
			continue
		}
		out = append(out, found{
			key: i.key() + "/" + c.GetId(), action: StartContainer, shadow: "not start " + c.GetName() + " yet, or not at all",
			running: fmt.Sprintf("has started it, attempt %d", c.GetAttempt()),
		})
	}
	return out
}

// doesNotStart returns why the syncloop that runs does not start a container; empty if it is about to. It is, as long
// as the container waits for anything but the end of its crash back-off.
func doesNotStart(pod *v1.Pod, name string) string {
	c := statusOf(pod, name)
	switch {
	case c == nil, c.State.Running != nil:
		return ""
	case c.State.Waiting != nil && c.State.Waiting.Reason != reasonCrashLoop:
		return ""
	case c.State.Waiting != nil:
		return "waits: " + reasonCrashLoop
	case c.State.Terminated != nil:
		return "does not start it again"
	}
	return ""
}

func statusOf(pod *v1.Pod, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// status compares the statuses, without times, texts and what only the syncloop that runs knows.
func (s sides) status() []found {
	ours, theirs := shape(&s.shadow.pod.Status), shape(&s.running.pod.Status)
	var shadow, running []string
	for _, name := range namesOf(ours, theirs) {
		if ours[name] != theirs[name] {
			shadow = append(shadow, name+"="+ours[name])
			running = append(running, name+"="+theirs[name])
		}
	}
	if len(shadow) == 0 {
		return nil
	}
	return []found{{
		key: string(Status) + "/" + strings.Join(shadow, ",") + "/" + strings.Join(running, ","), action: Status,
		shadow: strings.Join(shadow, ", "), running: strings.Join(running, ", "),
	}}
}

// compared are the conditions that syncloop computes for every pod.
func compared() []v1.PodConditionType {
	return []v1.PodConditionType{
		v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady, v1.DisruptionTarget,
	}
}

// shape returns the comparable parts of a status, by name.
func shape(status *v1.PodStatus) map[string]string {
	out := map[string]string{"phase": string(status.Phase)}
	for _, c := range status.Conditions {
		if slices.Contains(compared(), c.Type) {
			out[string(c.Type)] = string(c.Status)
		}
	}
	for _, list := range [][]v1.ContainerStatus{
		status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses,
	} {
		for i := range list {
			out[list[i].Name] = shapeOf(&list[i])
		}
	}
	return out
}

func shapeOf(c *v1.ContainerStatus) string {
	text := "unknown"
	switch {
	case c.State.Running != nil:
		text = "running"
	case c.State.Terminated != nil:
		text = fmt.Sprintf("ended with %d", c.State.Terminated.ExitCode)
	case c.State.Waiting != nil && c.State.Waiting.Reason == reasonCrashLoop:
		text = reasonCrashLoop
	case c.State.Waiting != nil:
		text = "waiting"
	}
	if c.Ready {
		text += " ready"
	}
	return fmt.Sprintf("%s restarts %d", text, c.RestartCount)
}

// namesOf returns the keys of both, sorted.
func namesOf(a, b map[string]string) []string {
	var names []string
	for name := range a {
		names = append(names, name)
	}
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
