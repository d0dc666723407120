package replay

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/internal/inspection"
	"github.com/quartet-node/quartet/services/pleg/internal/relist"
)

// A restarted pleg begins with what the process before has published, as its journal has it, and inspects every pod
// anew. The journal is not in the recording: it follows from the events and calls of the process before.

// beginning is the status of a pod at the begin of a segment. With earlier it is what the process before has published,
// and this one has not inspected the pod.
type beginning struct {
	status  *lifecyclev1.PodStatus
	earlier bool
}

// resume restores what the process before has published and the recorder did not get, because no event tells it: a
// container that was created, for example. The calls of that process show it.
func (p *player) resume(before *player) {
	if before == nil {
		return
	}
	published := before.relist.Published()
	for uid, at := range before.inspected {
		pod := p.segment.pods[uid]
		if pod != nil && (!pod.earlier || pod.knownAt > at) {
			continue // what was published is newer
		}
		if state, present := published[uid]; present {
			if pod != nil && pod.known.GetInspectError() != "" { // a later inspection has hung
				state.Status = proto.CloneOf(state.Status)
				state.Status.InspectError, state.Status.UnknownSince = pod.known.GetInspectError(), pod.known.GetUnknownSince()
			}
			p.begun[uid] = beginning{status: state.Status, earlier: true}
			p.relist.Restore(uid, state)
		} else {
			p.relist.Know(uid, nil)
		}
	}
}

// know sets the record of a pod at the begin of a segment.
func (p *player) know(uid string, b beginning) {
	if b.earlier {
		p.relist.Restore(uid, relist.PublishedAs(b.status))
	} else {
		p.relist.Know(uid, b.status)
	}
}

// begins finds out with which record the first recorded inspection of a pod by a restarted pleg began. Its calls and
// its time show whether this process had inspected the pod before its calls were recorded: it then asks for less. Its
// events name containers that the process before had noted in the moment before it was killed, when the recorder got no
// more of its calls.
func (p *player) begins(ctx context.Context, s *step, want []*lifecyclev1.Event) {
	b, begun := p.begun[s.uid]
	delete(p.begun, s.uid)
	if !begun {
		return
	}
	known := p.segment.pods[s.uid].known
	if b.earlier && known != nil && asks(ctx, s, known) && (p.isServed(s) || !asks(ctx, s, nil)) {
		b = beginning{status: known}
		p.know(s.uid, b)
	}
	if unknown := onlyInEvents(b.status, want); len(unknown) > 0 {
		b.status = proto.CloneOf(b.status)
		b.status.Containers = append(unknown, b.status.GetContainers()...)
		p.know(s.uid, b)
	}
}

// onlyInEvents returns the containers that a status does not have, and events say to be removed, the newest first.
func onlyInEvents(status *lifecyclev1.PodStatus, events []*lifecyclev1.Event) (unknown []*lifecyclev1.Container) {
	for i, event := range events {
		id := event.GetContainerId()
		if event.GetType() != lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED ||
			inspection.FindContainer(status, id) != nil {
			continue
		}
		c := &lifecyclev1.Container{
			Id: id, Name: event.GetContainerName(), State: lifecyclev1.ContainerState_CONTAINER_STATE_EXITED,
		}
		if i > 0 && events[i-1].GetContainerId() == id { // its death was not known
			c.State = lifecyclev1.ContainerState_CONTAINER_STATE_CREATED
			c.ExitCode, c.Reason = events[i-1].GetExitCode(), events[i-1].GetReason()
		}
		unknown = append(unknown, c)
	}
	slices.Reverse(unknown)
	return unknown
}

// asks reports whether an inspection by a process that knows a status of the pod makes exactly the recorded calls.
func asks(ctx context.Context, s *step, known *lifecyclev1.PodStatus) bool {
	runtime := newService(s.calls)
	err := relist.Ask(ctx, runtime, s.uid, known)
	return !errors.Is(err, relist.ErrNotRecorded) && len(runtime.asked) == len(s.calls)
}

// served ends the first relist of a restarted pleg, if it had finished by an inspection.
func (p *player) served(s *step) {
	if p.first != nil && len(p.first) == 0 || p.isServed(s) {
		p.relist.SetBefore(false)
	}
}

// isServed reports whether the recorder had the state of a restarted pleg before an inspection began: the first relist
// had inspected every pod then.
func (p *player) isServed(s *step) bool { return s.began.After(p.segment.served) }
