package replay

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	debugv1 "github.com/quartet-node/quartet/gen/quartet/debug/v1"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/noderecording"
	"github.com/quartet-node/quartet/internal/podlabels"
	"github.com/quartet-node/quartet/internal/runtimecalls"
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
	// from is the boot time of pleg's record at its begin; 0 without one, in which case the begin is known only from the
	// events so far.
	from time.Duration
	// continues is true if pleg compared the observations of its first relist with what the process before had published.
	continues bool
	// syncedAt is the boot time at which the first relist had finished; never if it was not recorded.
	syncedAt time.Duration
}

// never is a boot time that does not come.
const never = time.Duration(math.MaxInt64)

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
	// record is pleg's record of it at the begin; nil without one. known is then its status; nil if there is no pod.
	record *debugv1.PLEGRecordPod
	known  *lifecyclev1.PodStatus
	// knownAt is the boot time of the record, or of the observation that is known.
	knownAt time.Duration
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
	// record is pleg's record at the begin of the next segment: the first message has no pod.
	record []*debugv1.PLEGRecord
	// early has the events before a segment, which may belong to calls in it.
	early []noderecording.Entry
	// since is the boot time from which each call of the present segment is known; 0 before the first.
	since time.Duration
	// lastCall is the boot time of the last call so far.
	lastCall time.Duration
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
		case noderecording.PLEGRecord:
			r.recorded(e)
		case noderecording.Events:
			r.event(e)
		case noderecording.Desired, noderecording.Health, noderecording.Node, noderecording.Pods, noderecording.PodEvents,
			noderecording.SyncLoopCalls, noderecording.Heartbeats:
		}
	}
	r.end()
	return r.segments, nil
}

// recorded takes a part of pleg's record.
func (r *reader) recorded(e noderecording.Entry) {
	one, _ := e.Value.(*debugv1.PLEGRecord)
	switch {
	case r.callsUp && r.now != nil && one.GetSynced() && one.GetPod() == nil:
		r.now.syncedAt = min(r.now.syncedAt, time.Duration(one.GetTakenBoottimeNs()))
	case !r.callsUp && one.GetPod() == nil:
		r.record = []*debugv1.PLEGRecord{one} // the begin of a stream
	case !r.callsUp:
		r.record = append(r.record, one)
	}
}

// begin begins a segment, from pleg's record if there is one. end ends it.
func (r *reader) begin() {
	r.now = &segment{pods: map[string]*recorded{}}
	r.since, r.list, r.open, r.owners = 0, nil, map[string]*step{}, map[string]string{}
	if len(r.record) == 0 {
		for uid, status := range r.statuses {
			r.now.pods[uid] = &recorded{known: status, knownAt: r.observed[uid]}
		}
		return
	}
	head := r.record[0]
	r.now.from, r.now.continues = time.Duration(head.GetTakenBoottimeNs()), head.GetContinues()
	if !head.GetSynced() {
		r.now.syncedAt = never
	}
	for _, one := range r.record[1:] {
		r.now.pods[one.GetPod().GetUid()] = &recorded{
			record: one.GetPod(), knownAt: time.Duration(one.GetTakenBoottimeNs()),
		}
	}
	r.record = nil
	for _, e := range r.early {
		r.event(e)
	}
}

func (r *reader) end() {
	if r.now != nil && r.now.synced {
		slices.SortStableFunc(r.now.steps, func(a, b *step) int { return a.at - b.at })
		r.segments = append(r.segments, r.now)
	}
	r.now = nil
}

func (r *reader) call(i int, e noderecording.Entry) error {
	switch e.Op {
	case noderecording.Synced:
		r.end()
		r.begin()
		r.callsUp, r.now.synced, r.early = true, r.eventsUp, nil
		return nil
	case noderecording.Down:
		r.end()
		r.callsUp = false
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
	r.lastCall = max(r.lastCall, s.boot)
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
		r.now.pods[uid] = &recorded{knownAt: r.now.from}
	}
	return r.now.pods[uid]
}

// event takes an event of pleg. A state in a snapshot, and an event of an inspection before the segment, is what was
// known; every other event is compared.
func (r *reader) event(e noderecording.Entry) {
	switch e.Op {
	case noderecording.Synced:
		r.eventsUp = true
		if r.now != nil {
			r.now.synced = true
		}
		return
	case noderecording.Down:
		r.eventsUp, r.early = false, nil
		r.end()
		if r.callsUp {
			r.begin() // its state follows
		}
		return
	case noderecording.Put, noderecording.Remove:
	}
	event, _ := e.Value.(*lifecyclev1.Event)
	boot := time.Duration(event.GetStatus().GetObservedBoottimeNs())
	switch {
	case r.now == nil:
		r.early = append(r.early, e)
	case r.isCompared(event, boot):
		r.now.lastEvent = event.GetObservedAt().AsTime()
		r.pod(e.Key).events = append(r.pod(e.Key).events, event)
	default:
		r.now.lastEvent = event.GetObservedAt().AsTime()
		r.knows(e, event.GetStatus(), boot)
	}
	r.statuses[e.Key], r.observed[e.Key] = event.GetStatus(), boot
	if e.Op == noderecording.Remove {
		delete(r.statuses, e.Key)
		delete(r.observed, e.Key)
	}
}

// isCompared reports whether an event is one of an inspection in the segment.
func (r *reader) isCompared(event *lifecyclev1.Event, boot time.Duration) bool {
	since := r.since
	if r.now.from != 0 {
		since = r.now.from
	}
	return r.eventsUp && since != 0 && (boot >= since || failed(event))
}

// knows notes the status in an event as what was known at the begin of the segment, unless pleg's record has it.
func (r *reader) knows(e noderecording.Entry, status *lifecyclev1.PodStatus, boot time.Duration) {
	switch {
	case r.now.from == 0:
	case e.Value == nil: // gone before the stream of events began
		boot = r.lastCall
	case boot < r.now.from && r.now.pods[e.Key] == nil, r.now.pods[e.Key] != nil && boot < r.now.pods[e.Key].knownAt:
		return
	}
	pod := r.pod(e.Key)
	pod.record, pod.known, pod.knownAt = nil, status, boot
	if e.Op == noderecording.Remove {
		pod.known = nil
	}
}

// failed reports whether an event says that its pod could not be inspected. It has the status of an earlier inspection.
func failed(event *lifecyclev1.Event) bool { return event.GetStatus().GetInspectError() != "" }
