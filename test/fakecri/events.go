package fakecri

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxBacklog bounds the events that are kept for the first subscriber.
const maxBacklog = 20000

// eventLog gives events to subscribers, and keeps them while there is none, as containerd does.
type eventLog struct {
	mu          sync.Mutex
	unsupported bool
	backlog     []*runtimeapi.ContainerEventResponse
	subscribers map[*subscriber]struct{}
}

type subscriber struct {
	mu     sync.Mutex
	queue  []*runtimeapi.ContainerEventResponse
	err    error
	signal chan struct{}
}

// SetEventsSupported with false makes GetContainerEvents unimplemented, and breaks the streams that are open.
func (s *Server) SetEventsSupported(supported bool) {
	s.events.mu.Lock()
	s.events.unsupported = !supported
	s.events.mu.Unlock()
	if !supported {
		s.BreakEvents(status.Error(codes.Unimplemented, "no container events here"))
	}
}

// BreakEvents ends every open event stream with an error.
func (s *Server) BreakEvents(err error) {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	for sub := range s.events.subscribers {
		sub.put(nil, err)
	}
}

// EventSubscribers returns how many event streams are open.
func (s *Server) EventSubscribers() int {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	return len(s.events.subscribers)
}

// MuteEvents keeps changes from being told by events, as a runtime does that loses them.
func (s *Server) MuteEvents(muted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.muted = muted
}

// SendEvent tells an event of the test's making, which happened so long ago, for a container or a sandbox by the sandbox's
// id; the status is nil when there is no such sandbox.
func (s *Server) SendEvent(containerID, sandboxID string, kind runtimeapi.ContainerEventType, age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emitAged(containerID, s.sandboxes[sandboxID], kind, age)
}

// emit tells an event. Called with s.mu held; sb is nil when the sandbox is gone.
func (s *Server) emit(containerID string, sb *sandbox, kind runtimeapi.ContainerEventType) {
	if !s.muted {
		s.emitAged(containerID, sb, kind, 0)
	}
}

func (s *Server) emitAged(containerID string, sb *sandbox, kind runtimeapi.ContainerEventType, age time.Duration) {
	event := &runtimeapi.ContainerEventResponse{ContainerId: containerID, ContainerEventType: kind, CreatedAt: s.now() - age.Nanoseconds()}
	if sb != nil {
		event.PodSandboxStatus = sb.status()
	}
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	if len(s.events.subscribers) == 0 {
		s.events.backlog = append(s.events.backlog, event)
		if extra := len(s.events.backlog) - maxBacklog; extra > 0 {
			s.events.backlog = s.events.backlog[extra:]
		}
		return
	}
	for sub := range s.events.subscribers {
		sub.put(event, nil)
	}
}

// GetContainerEvents implements the CRI.
func (s *Server) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	sub := &subscriber{signal: make(chan struct{}, 1)}
	if err := s.events.subscribe(sub); err != nil {
		return err
	}
	defer s.events.unsubscribe(sub)
	for {
		batch, err := sub.take()
		for _, event := range batch {
			if err := stream.Send(event); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-sub.signal:
		}
	}
}

func (l *eventLog) subscribe(sub *subscriber) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsupported {
		return status.Error(codes.Unimplemented, "no container events here")
	}
	if l.subscribers == nil {
		l.subscribers = map[*subscriber]struct{}{}
	}
	l.subscribers[sub] = struct{}{}
	for _, event := range l.backlog {
		sub.put(event, nil)
	}
	l.backlog = nil
	return nil
}

func (l *eventLog) unsubscribe(sub *subscriber) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subscribers, sub)
}

func (sub *subscriber) put(event *runtimeapi.ContainerEventResponse, err error) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if event != nil {
		sub.queue = append(sub.queue, event)
	}
	if err != nil {
		sub.err = err
	}
	select {
	case sub.signal <- struct{}{}:
	default:
	}
}

func (sub *subscriber) take() ([]*runtimeapi.ContainerEventResponse, error) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	batch := sub.queue
	sub.queue = nil
	return batch, sub.err
}
