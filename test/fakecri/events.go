package fakecri

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxBacklog bounds the events that are stored for the first subscriber.
const maxBacklog = 20000

// eventLog delivers events to subscribers, and stores them while there is none, as containerd does.
type eventLog struct {
	mu          sync.Mutex
	unsupported bool
	backlog     []*runtimeapi.ContainerEventResponse
	subscribers map[*subscriber]struct{}
	twists      []Twist
	// life is the lifetime of a stream, and ending the error at its end; 0 is unlimited.
	life   time.Duration
	ending error
}

type subscriber struct {
	mu     sync.Mutex
	queue  []*runtimeapi.ContainerEventResponse
	err    error
	signal chan struct{}
}

// SetEventsSupported with false makes GetContainerEvents unimplemented, and breaks the open streams.
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

// EventSubscribers returns the number of open event streams.
func (s *Server) EventSubscribers() int {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	return len(s.events.subscribers)
}

// MuteEvents suppresses the events of changes, as a runtime does that loses them.
func (s *Server) MuteEvents(muted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.muted = muted
}

// SendEvent sends an event that the test defines, of the given age, for a container or a sandbox by the sandbox's id.
// Its status is nil when the sandbox does not exist.
func (s *Server) SendEvent(containerID, sandboxID string, kind runtimeapi.ContainerEventType, age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emitAged(containerID, s.sandboxes[sandboxID], kind, age)
}

// emit sends an event. Called with s.mu held; sb is nil when the sandbox is removed.
func (s *Server) emit(containerID string, sb *sandbox, kind runtimeapi.ContainerEventType) {
	if !s.muted {
		s.emitAged(containerID, sb, kind, 0)
	}
}

func (s *Server) emitAged(containerID string, sb *sandbox, kind runtimeapi.ContainerEventType, age time.Duration) {
	event := &runtimeapi.ContainerEventResponse{ContainerId: containerID, ContainerEventType: kind,
		CreatedAt: s.now() - age.Nanoseconds()}
	if sb != nil {
		event.PodSandboxStatus = sb.status()
	}
	s.events.deliver(event)
}

// deliver passes an event through the twists and delivers the result.
func (l *eventLog) deliver(event *runtimeapi.ContainerEventResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, event := range twisted(l.twists, event) {
		l.give(event)
	}
}

// give delivers an event to the subscribers, and stores it when there is none. Called with mu held.
func (l *eventLog) give(event *runtimeapi.ContainerEventResponse) {
	if len(l.subscribers) == 0 {
		l.keep(event)
		return
	}
	for sub := range l.subscribers {
		sub.put(event, nil)
	}
}

// keep stores an event for the next subscriber. Called with mu held.
func (l *eventLog) keep(event *runtimeapi.ContainerEventResponse) {
	l.backlog = append(l.backlog, event)
	if extra := len(l.backlog) - maxBacklog; extra > 0 {
		l.backlog = l.backlog[extra:]
	}
}

// GetContainerEvents implements the CRI.
func (s *Server) GetContainerEvents(
	_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse],
) error {
	sub := &subscriber{signal: make(chan struct{}, 1)}
	life, ending, err := s.events.subscribe(sub)
	if err != nil {
		return err
	}
	defer s.events.unsubscribe(sub)
	var over <-chan time.Time
	if life > 0 {
		timer := s.clock.NewTimer(life)
		defer timer.Stop()
		over = timer.C()
	}
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
		case <-over:
			return ending
		case <-sub.signal:
		}
	}
}

func (l *eventLog) subscribe(sub *subscriber) (life time.Duration, ending, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsupported {
		return 0, nil, status.Error(codes.Unimplemented, "no container events here")
	}
	if l.subscribers == nil {
		l.subscribers = map[*subscriber]struct{}{}
	}
	l.subscribers[sub] = struct{}{}
	for _, event := range l.backlog {
		sub.put(event, nil)
	}
	l.backlog = nil
	return l.life, l.ending, nil
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
