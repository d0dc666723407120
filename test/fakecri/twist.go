package fakecri

import (
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Twist replaces each event by none, one or several, as an unreliable runtime does.
type Twist struct {
	// make is called with the events' lock held.
	make func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse
	// rest returns the events that are still delayed; it is nil when none ever are.
	rest func() []*runtimeapi.ContainerEventResponse
}

// Losing drops every event whose number is a multiple of each; 1 drops all.
func Losing(each int) Twist {
	n := 0
	return Twist{make: func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse {
		if n++; n%each == 0 {
			return nil
		}
		return []*runtimeapi.ContainerEventResponse{event}
	}}
}

// Repeating sends each event so many times.
func Repeating(times int) Twist {
	return Twist{make: func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse {
		return slices.Repeat([]*runtimeapi.ContainerEventResponse{event}, times)
	}}
}

// Reversing delays so many events, and then sends them in reverse order.
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

// WithoutStatus sends events without the status of the pod, as a runtime does that no longer finds it.
func WithoutStatus() Twist {
	return Twist{make: func(event *runtimeapi.ContainerEventResponse) []*runtimeapi.ContainerEventResponse {
		return []*runtimeapi.ContainerEventResponse{{
			ContainerId: event.GetContainerId(), ContainerEventType: event.GetContainerEventType(),
			CreatedAt: event.GetCreatedAt(),
		}}
	}}
}

// TwistEvents passes all later events through twists, one after another, before they are delivered or stored; without
// twists they are unchanged. The events that the former twists have delayed are sent.
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

// FillBacklog prepends events of the given age for the next subscriber, as containerd does that had no subscriber for a
// while. They are starts of the existing containers, one after another. It is a no-op without containers.
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
			ContainerId: c.id, ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT,
			CreatedAt:        s.now() - age.Nanoseconds(),
			PodSandboxStatus: s.sandboxes[c.sandboxID].status(),
		})
	}
}

// EndEventStreamsAfter ends every event stream that is opened from now on after a lifetime, with an error or, when it
// is nil, with the end of the stream. 0 is an unlimited lifetime.
func (s *Server) EndEventStreamsAfter(life time.Duration, ending error) {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	s.events.life, s.events.ending = life, ending
}
