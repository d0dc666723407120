package fakecri

import (
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Twist makes of each event none, one or several, as a runtime does that is not as good as it should be.
type Twist struct {
	// make is called with the events' lock held.
	make func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse
	// rest returns what is held back still; nil when nothing ever is.
	rest func() []*runtimeapi.ContainerEventResponse
}

// Losing loses each event of so many; 1 loses all.
func Losing(each int) Twist {
	n := 0
	return Twist{make: func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse {
		if n++; n%each == 0 {
			return nil
		}
		return []*runtimeapi.ContainerEventResponse{event}
	}}
}

// Repeating tells each event so many times.
func Repeating(times int) Twist {
	return Twist{make: func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse {
		return slices.Repeat([]*runtimeapi.ContainerEventResponse{event}, times)
	}}
}

// Reversing holds so many events back, and then tells them, the last one first.
func Reversing(count int) Twist {
	var held []*runtimeapi.ContainerEventResponse
	take := func() []*runtimeapi.ContainerEventResponse {
		all := held
		held = nil
		slices.Reverse(all)
		return all
	}
	return Twist{rest: take, make: func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse {
		if held = append(held, event); len(held) < count {
			return nil
		}
		return take()
	}}
}

// WithoutStatus tells events without the status of the pod, as a runtime does that could not find it any more.
func WithoutStatus() Twist {
	return Twist{make: func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse {
		return []*runtimeapi.ContainerEventResponse{{
			ContainerId: event.GetContainerId(), ContainerEventType: event.GetContainerEventType(), CreatedAt: event.GetCreatedAt(),
		}}
	}}
}

// TwistEvents makes all events from now on go through twists, one after another, before anybody gets them or they are kept;
// with none they are told as they are. What the twists of before have held back is told.
func (s *Server) TwistEvents(twists ...Twist) {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	for i, t := range s.events.twists {
		if t.rest == nil {
			continue
		}
		for _, event := range t.rest() {
			for _, made := range twisted(s.events.twists[i+1:], event) {
				s.events.give(made)
			}
		}
	}
	s.events.twists = twists
}

func twisted(twists []Twist, event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse {
	events := []*runtimeapi.ContainerEventResponse{event}
	for _, t := range twists {
		var next []*runtimeapi.ContainerEventResponse
		for _, event := range events {
			next = append(next, t.make(event)...)
		}
		events = next
	}
	return events
}

// FillBacklog makes the next subscriber get so many events first which happened so long ago, as containerd does that had no
// subscriber for a while: starts of the containers that are there, one after another. It does nothing when there is none.
func (s *Server) FillBacklog(count int, age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := inOrder(s.containers)
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	for i := range count {
		if len(ids) == 0 {
			return
		}
		c := s.containers[ids[i%len(ids)]]
		s.events.keep(&runtimeapi.ContainerEventResponse{
			ContainerId: c.id, ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, CreatedAt: s.now() - age.Nanoseconds(),
			PodSandboxStatus: s.sandboxes[c.sandboxID].status(),
		})
	}
}

// EndEventStreamsAfter ends every event stream that is opened from now on when it is so old, with an error or, when that is nil,
// as if there were no more events. 0 lets streams live.
func (s *Server) EndEventStreamsAfter(life time.Duration, ending error) {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	s.events.life, s.events.ending = life, ending
}
