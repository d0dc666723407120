package fakecri

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"
	"k8s.io/utils/clock"
)

// Call is one call that the server took.
type Call struct {
	// Method is the CRI method, for example "PodSandboxStatus".
	Method string
	// IDs are what the call is about: the sandbox's or container's id, the UID of the pod that a list is filtered by, the
	// image.
	IDs []string
	// PodUID is the pod that has the sandbox or container; empty when there is none.
	PodUID string
	// At is when it came in.
	At time.Time
	// Traceparent is the W3C trace context in its metadata; empty when it has none.
	Traceparent string
}

// script is what calls meet before they are answered, and the log of them.
type script struct {
	clock clock.Clock

	mu          sync.Mutex
	rules       []*rule
	calls       []Call
	inFlight    map[string]int
	maxInFlight map[string]int
}

// rule is met by calls of method about id; an empty id is met by all.
type rule struct {
	method, id string
	// left is how many more calls meet it; negative is no limit.
	left  int
	err   error
	delay time.Duration
	gate  *Gate
}

// Fail makes the next calls of a method about an id fail with err: as many as times says, all when it is negative. The id is
// that of a sandbox or container, the UID of a pod, whose calls all meet it, or an image; an empty id stands for all. Use status errors of grpc for codes. The returned function ends it.
func (s *Server) Fail(method, id string, times int, err error) (undo func()) {
	return s.script.add(&rule{method: method, id: id, left: times, err: err})
}

// Delay makes every call of a method about an id wait. The returned function ends it for calls that are still to come.
func (s *Server) Delay(method, id string, delay time.Duration) (undo func()) {
	return s.script.add(&rule{method: method, id: id, left: -1, delay: delay})
}

// Hang makes every call of a method about an id wait until the gate is opened, or the caller gives up.
func (s *Server) Hang(method, id string) *Gate {
	gate := &Gate{open: make(chan struct{})}
	gate.undo = s.script.add(&rule{method: method, id: id, left: -1, gate: gate})
	return gate
}

// Gate holds calls back.
type Gate struct {
	undo func()
	once sync.Once
	open chan struct{}

	mu      sync.Mutex
	waiting int
	reached int
}

// Open lets the calls go that wait, and those that come later.
func (g *Gate) Open() {
	g.once.Do(func() {
		g.undo()
		close(g.open)
	})
}

// Waiting returns how many calls wait now.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

// Reached returns how many calls have come to the gate since it was set up.
func (g *Gate) Reached() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reached
}

func (g *Gate) count(waiting, reached int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting += waiting
	g.reached += reached
}

// Calls returns the calls so far, in the order in which they came in.
func (s *Server) Calls() []Call {
	s.script.mu.Lock()
	defer s.script.mu.Unlock()
	return slices.Clone(s.script.calls)
}

// ResetCalls forgets the calls so far.
func (s *Server) ResetCalls() {
	s.script.mu.Lock()
	defer s.script.mu.Unlock()
	s.script.calls = nil
	clear(s.script.maxInFlight)
}

// Count returns how many calls of a method about an id came in; an empty id counts all.
func (s *Server) Count(method, id string) int {
	n := 0
	for _, call := range s.Calls() {
		if call.Method == method && call.isAbout(id) {
			n++
		}
	}
	return n
}

// MaxInFlight returns how many calls of a method were there at the same time at most.
func (s *Server) MaxInFlight(method string) int {
	s.script.mu.Lock()
	defer s.script.mu.Unlock()
	return s.script.maxInFlight[method]
}

func (sc *script) add(r *rule) (undo func()) {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.rules = append(sc.rules, r)
	return func() {
		sc.mu.Lock()
		defer sc.mu.Unlock()
		sc.rules = slices.DeleteFunc(sc.rules, func(x *rule) bool { return x == r })
	}
}

// enter notes the call and takes it through the rules that it meets; done has to be called when it is answered.
func (sc *script) enter(ctx context.Context, call Call) (done func(), err error) {
	call.At, call.Traceparent = sc.clock.Now(), traceparent(ctx)
	done = func() {
		sc.mu.Lock()
		defer sc.mu.Unlock()
		sc.inFlight[call.Method]--
	}
	for _, r := range sc.note(call) {
		if r.delay > 0 {
			select {
			case <-sc.clock.After(r.delay):
			case <-ctx.Done():
				return done, ctx.Err()
			}
		}
		if r.gate != nil {
			r.gate.count(1, 1)
			select {
			case <-r.gate.open:
			case <-ctx.Done():
			}
			r.gate.count(-1, 0)
			if ctx.Err() != nil {
				return done, ctx.Err()
			}
		}
		if r.err != nil {
			return done, r.err
		}
	}
	return done, nil
}

// traceparent is what a call has in its metadata.
func traceparent(ctx context.Context) string {
	received, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(received.Get("traceparent"), ",")
}

func (sc *script) note(call Call) []*rule {
	method := call.Method
	sc.mu.Lock()
	defer sc.mu.Unlock()
	sc.calls = append(sc.calls, call)
	sc.inFlight[method]++
	sc.maxInFlight[method] = max(sc.maxInFlight[method], sc.inFlight[method])
	var met []*rule
	for _, r := range sc.rules {
		if r.method != method || r.left == 0 || !call.isAbout(r.id) {
			continue
		}
		if r.left > 0 {
			r.left--
		}
		met = append(met, r)
	}
	return met
}

// isAbout tells whether a call is about an id, or the pod with a UID; any is about the empty one.
func (c Call) isAbout(id string) bool {
	return id == "" || id == c.PodUID || slices.Contains(c.IDs, id)
}

// podOf returns the UID of the pod that has one of some ids.
func (s *Server) podOf(ids []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if c, ok := s.containers[id]; ok {
			id = c.sandboxID
		}
		if sb, ok := s.sandboxes[id]; ok {
			return sb.config.GetMetadata().GetUid()
		}
	}
	return ""
}

// idsOf finds what a request is about.
func idsOf(req any) []string {
	var ids []string
	add := func(id string) {
		if id != "" {
			ids = append(ids, id)
		}
	}
	if r, ok := req.(interface{ GetPodSandboxId() string }); ok {
		add(r.GetPodSandboxId())
	}
	if r, ok := req.(interface{ GetContainerId() string }); ok {
		add(r.GetContainerId())
	}
	if r, ok := req.(interface{ GetImage() *runtimeapi.ImageSpec }); ok {
		add(r.GetImage().GetImage())
	}
	switch r := req.(type) {
	case *runtimeapi.ListContainersRequest:
		add(r.GetFilter().GetId())
		add(r.GetFilter().GetPodSandboxId())
		add(r.GetFilter().GetLabelSelector()[types.KubernetesPodUIDLabel])
	case *runtimeapi.ListPodSandboxRequest:
		add(r.GetFilter().GetId())
		add(r.GetFilter().GetLabelSelector()[types.KubernetesPodUIDLabel])
	case *runtimeapi.RunPodSandboxRequest:
		add(r.GetConfig().GetMetadata().GetUid())
	case *runtimeapi.CreateContainerRequest:
		add(r.GetConfig().GetMetadata().GetName())
	}
	return ids
}
