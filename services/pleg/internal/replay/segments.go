package replay

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/runtimecalls"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
)

// segment is a part of a recording in which pleg's calls and events are complete.
type segment struct {
	steps []*step
	// pods has what the recording has about each pod, by UID.
	pods map[string]*recorded
	// synced is true if the state of all pods is known in it.
	synced bool
	// lastEvent is the time of the last event of any pod: all events before it are there.
	lastEvent time.Time
	// restarted is true if pleg was away before it, so that its record begins with what the earlier process has published.
	restarted bool
	// served is when the recorder had the state of a restarted pleg: its first relist had finished then. It is zero if the
	// recorder had it already at the begin.
	served time.Time
}

// step is what pleg did: it heard an event of the runtime, listed everything, or inspected a pod.
type step struct {
	// at is the position in the recording of the last call.
	at   int
	line int
	// event is set for an event; uid for an inspection; neither for a list.
	event *runtimeapi.ContainerEventResponse
	uid   string
	// calls are the calls by method and ID.
	calls runtime
	// began and boot are when the first call began, and ended is when the last one ended.
	began, ended time.Time
	boot         time.Duration
}

// recorded is what a segment has about a pod.
type recorded struct {
	// known is the status at its begin; nil if there is no pod. knownAt is the boot time of that observation. earlier is
	// true if it is one of the process before.
	known   *lifecyclev1.PodStatus
	knownAt time.Duration
	earlier bool
	events  []*lifecyclev1.Event
	// inspections are in their order.
	inspections []*step
}

// reader divides a recording into segments.
type reader struct {
	segments []*segment
	// now is the present segment; nil in a gap. callsUp and eventsUp say which streams the recorder has.
	now               *segment
	callsUp, eventsUp bool
	// eventsLost is true if the stream of events was lost after the recorder had last had both. A pleg that has ended
	// takes both with it. Calls alone have a gap if the recorder was too slow, and events alone if their stream has
	// overflowed.
	eventsLost bool
	// since is the boot time from which each call of the present segment is known; 0 before the first.
	since time.Duration
	// statuses has the latest published status of each pod, and observed when it was observed.
	statuses map[string]*lifecyclev1.PodStatus
	observed map[string]time.Duration
	// list is the list of all sandboxes to which the list of all containers is still missing.
	list *step
	// open has the present inspection of each pod, and owners the pod of each sandbox and container.
	open   map[string]*step
	owners map[string]string
}

// read divides a recording into segments. It fails for a call that it does not know.
func read(entries []noderecording.Entry) ([]*segment, error) {
	r := &reader{statuses: map[string]*lifecyclev1.PodStatus{}, observed: map[string]time.Duration{}}
	for i, e := range entries {
		switch e.Part {
		case noderecording.PLEGCalls:
			if err := r.call(i, e); err != nil {
				return nil, fmt.Errorf("line %d: %w", e.Line, err)
			}
		case noderecording.Events:
			r.event(e)
		case noderecording.Desired, noderecording.Health, noderecording.Node, noderecording.Pods, noderecording.PodEvents,
			noderecording.SyncLoopCalls, noderecording.Heartbeats:
		}
	}
	r.end()
	return r.segments, nil
}

// begin begins a segment. end ends it.
func (r *reader) begin(restarted bool) {
	r.now = &segment{pods: map[string]*recorded{}, restarted: restarted}
	r.since, r.list, r.open, r.owners = 0, nil, map[string]*step{}, map[string]string{}
	for uid, status := range r.statuses {
		r.now.pods[uid] = &recorded{known: status, knownAt: r.observed[uid], earlier: restarted}
	}
}

func (r *reader) end() {
	if r.now != nil && r.now.synced {
		slices.SortStableFunc(r.now.steps, func(a, b *step) int { return a.at - b.at })
		r.now.forgetEarlier()
		r.segments = append(r.segments, r.now)
	}
	r.now = nil
}

// forgetEarlier finds the pods that a restarted pleg had inspected before its calls were recorded, so that its record
// of them is not that of the process before. Its first relist inspects every pod. If it has not inspected one after the
// first list of the segment, or was served before, that was a later relist.
func (s *segment) forgetEarlier() {
	i := slices.IndexFunc(s.steps, (*step).hasListed)
	if i < 0 {
		return
	}
	list, last := s.steps[i], s.steps[len(s.steps)-1]
	inspects := func(pod *recorded, until time.Time) bool {
		return len(pod.inspections) > 0 && pod.inspections[0].began.Before(until)
	}
	until := list.ended.Add(relist.FirstSettle)
	if list.began.After(s.served) {
		until = list.began
	}
	for _, pod := range s.pods {
		if pod.earlier && !inspects(pod, until) && last.ended.After(list.ended.Add(relist.Settle)) {
			until = list.began
			break
		}
	}
	for _, pod := range s.pods {
		pod.earlier = pod.earlier && inspects(pod, until)
	}
}

// hasListed reports whether a step is a list of everything that has succeeded.
func (s *step) hasListed() bool {
	return s.uid == "" && s.event == nil && s.calls[listSandboxes].code == 0 && s.calls[listContainers].code == 0
}

func (r *reader) call(i int, e noderecording.Entry) error {
	switch e.Op {
	case noderecording.Synced:
		r.end()
		r.begin(r.eventsLost)
		r.callsUp, r.now.synced = true, r.eventsUp
		r.eventsLost = false
		return nil
	case noderecording.Down:
		r.end()
		r.callsUp, r.eventsLost = false, r.eventsLost || !r.eventsUp
		return nil
	case noderecording.Put, noderecording.Remove:
	}
	call, _ := e.Value.(*debugv1.RuntimeCall)
	request, response, err := runtimecalls.Decode(call)
	if err != nil || r.now == nil {
		return err
	}
	began := call.GetBeganAt().AsTime()
	s := &step{
		at: i, line: e.Line, began: began, ended: began.Add(call.GetTook().AsDuration()),
		boot: time.Duration(call.GetBeganBoottimeNs()),
	}
	if r.since == 0 {
		r.since = s.boot + call.GetTook().AsDuration()
	}
	r.add(s, answer{code: call.GetCode(), response: response}, request)
	return nil
}

// add adds a call to what it is a part of.
func (r *reader) add(s *step, a answer, request proto.Message) {
	switch request := request.(type) {
	case *runtimeapi.GetEventsRequest:
		s.event, _ = a.response.(*runtimeapi.ContainerEventResponse)
		r.now.steps = append(r.now.steps, s)
	case *runtimeapi.ListPodSandboxRequest:
		s.uid, s.calls = request.GetFilter().GetLabelSelector()[podlabels.PodUID], runtime{listSandboxes: a}
		if s.uid == "" {
			r.list = s
			return
		}
		r.open[s.uid] = s
		r.now.steps = append(r.now.steps, s)
		r.pod(s.uid).inspections = append(r.pod(s.uid).inspections, s)
		for _, item := range responseOf[*runtimeapi.ListPodSandboxResponse](a).GetItems() {
			r.owners[item.GetId()] = s.uid
		}
	case *runtimeapi.ListContainersRequest:
		uid := request.GetFilter().GetLabelSelector()[podlabels.PodUID]
		if uid == "" {
			r.listed(s, a)
			return
		}
		r.extend(uid, listContainers, s, a)
		for _, item := range responseOf[*runtimeapi.ListContainersResponse](a).GetContainers() {
			r.owners[item.GetId()] = uid
		}
	case *runtimeapi.PodSandboxStatusRequest:
		r.extend(r.owners[request.GetPodSandboxId()], sandboxStatus+request.GetPodSandboxId(), s, a)
	case *runtimeapi.ContainerStatusRequest:
		r.extend(r.owners[request.GetContainerId()], containerStatus+request.GetContainerId(), s, a)
	}
}

// listed completes a list of everything.
func (r *reader) listed(s *step, a answer) {
	if r.list == nil {
		return
	}
	r.list.calls[listContainers] = a
	r.list.at, r.list.ended = s.at, s.ended
	r.now.steps = append(r.now.steps, r.list)
	r.list = nil
}

// extend adds a call to the present inspection of a pod. A call of an inspection whose begin is not recorded is left
// out.
func (r *reader) extend(uid, call string, s *step, a answer) {
	if of := r.open[uid]; of != nil {
		of.calls[call] = a
		of.at, of.ended = s.at, s.ended
	}
}

func (r *reader) pod(uid string) *recorded {
	if r.now.pods[uid] == nil {
		r.now.pods[uid] = &recorded{}
	}
	return r.now.pods[uid]
}

// event takes an event of pleg. A state in a snapshot, and an event of an inspection before the segment, is what was
// known; every other event is compared.
func (r *reader) event(e noderecording.Entry) {
	switch e.Op {
	case noderecording.Synced:
		r.eventsUp = true
		if r.now != nil && !r.now.synced {
			r.now.synced, r.now.served = true, e.Time
		}
		if r.callsUp {
			r.eventsLost = false
		}
		return
	case noderecording.Down:
		r.eventsUp, r.eventsLost = false, true
		r.end()
		if r.callsUp {
			r.begin(false) // its state follows
		}
		return
	case noderecording.Put, noderecording.Remove:
	}
	event, _ := e.Value.(*lifecyclev1.Event)
	boot := time.Duration(event.GetStatus().GetObservedBoottimeNs())
	if r.now != nil {
		r.now.lastEvent = event.GetObservedAt().AsTime()
	}
	if r.now != nil && r.eventsUp && r.since != 0 && (boot >= r.since || failed(event)) {
		r.pod(e.Key).events = append(r.pod(e.Key).events, event)
	} else if r.now != nil {
		pod := r.pod(e.Key)
		pod.known, pod.knownAt, pod.earlier = event.GetStatus(), boot, false
		if e.Op == noderecording.Remove {
			pod.known = nil
		}
	}
	r.statuses[e.Key], r.observed[e.Key] = event.GetStatus(), boot
	if e.Op == noderecording.Remove {
		delete(r.statuses, e.Key)
		delete(r.observed, e.Key)
	}
}

// failed reports whether an event says that its pod could not be inspected. It has the status of an earlier inspection.
func failed(event *lifecyclev1.Event) bool { return event.GetStatus().GetInspectError() != "" }
