package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
)

// nothing is what is printed in the place of an event that is missing.
const nothing = "no event"

// until takes the recorded events of a pod until an inspection.
func (pod *recorded) until(s *step) (want []*lifecyclev1.Event) {
	for len(pod.events) > 0 {
		of := inspectionOf(pod, pod.events[0])
		if of != nil && of.at > s.at {
			break
		}
		if of != nil && of.boot >= pod.knownAt {
			want = append(want, pod.events[0])
		}
		pod.events = pod.events[1:]
	}
	return want
}

// compare compares the events of an inspection with the recorded ones.
func (p *player) compare(s *step, want []*lifecyclev1.Event) error {
	got := p.published[s.uid]
	delete(p.published, s.uid)
	p.compared[s.uid] = true
	differs := false
	for i := range max(len(got), len(want)) {
		if i >= len(want) && p.segment.lastEvent.Before(s.ended) {
			break // the recorder had the calls before the events when it ended
		}
		// That the state of a pod is unknown may also follow from a list, and come before or after an inspection.
		if i >= len(want) && allFailed(got[i:]) {
			p.published[s.uid] = got[i:]
			break
		}
		if i >= len(got) && allFailed(want[i:]) {
			pod := p.segment.pods[s.uid]
			pod.events = append(want[i:], pod.events...)
			break
		}
		replays, recorded := textAt(got, i), textAt(want, i)
		if i < len(want) {
			p.summary.Events++
			p.name(s.uid, want[i].GetStatus())
		}
		if i < len(got) && i < len(want) && proto.Equal(canonical(got[i]), canonical(want[i])) {
			continue
		}
		differs = true
		if replays == recorded {
			replays, recorded = replays+" with other details", recorded+" as recorded"
		}
		if err := p.report(s, ActionPublish, replays, recorded); err != nil {
			return err
		}
	}
	if differs && len(want) > 0 {
		p.relist.Know(s.uid, want[len(want)-1].GetStatus()) // one difference makes no others
	}
	return nil
}

func allFailed(events []*lifecyclev1.Event) bool {
	return !slices.ContainsFunc(events, func(e *lifecyclev1.Event) bool { return !failed(e) })
}

// inspectionOf returns the inspection that has made an event; nil if it is not in the recording. An event has the time
// of its inspection, which is before its first call. One for a pod that could not be inspected has it not, and was made
// during the inspection. An inspection that hung until pleg was killed is not in the recording: the pod is then unknown
// since after the end of the one before.
func inspectionOf(pod *recorded, event *lifecyclev1.Event) *step {
	if failed(event) {
		at := event.GetObservedAt().AsTime()
		i, _ := slices.BinarySearchFunc(pod.inspections, at, func(s *step, at time.Time) int {
			return cmp.Or(s.began.Compare(at), -1)
		})
		since := event.GetStatus().GetUnknownSince()
		if i == 0 || (since != nil && pod.inspections[i-1].ended.Before(since.AsTime())) {
			return nil
		}
		return pod.inspections[i-1]
	}
	boot := time.Duration(event.GetStatus().GetObservedBoottimeNs())
	i, _ := slices.BinarySearchFunc(pod.inspections, boot, func(s *step, boot time.Duration) int {
		return cmp.Compare(s.boot, boot)
	})
	if i == len(pod.inspections) {
		return nil
	}
	return pod.inspections[i]
}

// canonical returns an event without what is no decision: times of this process, the trace, and texts that are not
// recorded.
func canonical(event *lifecyclev1.Event) *lifecyclev1.Event {
	out := proto.CloneOf(event)
	out.ObservedAt, out.OccurredAt, out.Traceparent = nil, nil, ""
	status := out.GetStatus()
	if status == nil {
		return out
	}
	status.ObservedAt, status.ObservedBoottimeNs = nil, 0
	if status.GetInspectError() != "" {
		status.InspectError = "failed"
	}
	if status.GetUnknownSince() != nil {
		status.UnknownSince = &timestamppb.Timestamp{}
	}
	for _, c := range status.GetContainers() {
		c.Message, c.LogPath, c.Annotations = "", "", nil
	}
	return out
}

func textAt(events []*lifecyclev1.Event, i int) string {
	if i >= len(events) {
		return nothing
	}
	return text(events[i])
}

// text returns an event for people.
func text(event *lifecyclev1.Event) string {
	name := strings.TrimPrefix(event.GetType().String(), "EVENT_TYPE_")
	switch {
	case event.GetType() == lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED:
		return fmt.Sprintf("%s %s exit code %d", name, event.GetContainerName(), event.GetExitCode())
	case event.GetContainerName() != "":
		return name + " " + event.GetContainerName()
	case failed(event):
		return name + " state unknown"
	}
	ready := 0
	for _, s := range event.GetStatus().GetSandboxes() {
		if s.GetState() == lifecyclev1.SandboxState_SANDBOX_STATE_READY {
			ready++
		}
	}
	return fmt.Sprintf("%s %d sandboxes, %d ready, %d containers", name, len(event.GetStatus().GetSandboxes()), ready,
		len(event.GetStatus().GetContainers()))
}
