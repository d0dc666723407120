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

// Call is one call to the server.
type Call struct {
	// Method is the CRI method, for example "PodSandboxStatus".
	Method string
	// IDs are the subjects of the call: the sandbox's or container's id, the UID of the pod in a list's filter, the image.
	IDs []string
	// PodUID is the UID of the pod of the sandbox or container; empty when there is none.
	PodUID string
	// At is when the server received it.
	At time.Time
	// Traceparent is the W3C trace context in its metadata; empty without one.
	Traceparent string
}

// script has the rules for calls, and the log of the calls.
type script struct {
	clock clock.Clock

	mu          sync.Mutex
	rules       []*rule
	calls       []Call
	inFlight    map[string]int
	maxInFlight map[string]int
}

// rule applies to calls of method about id; an empty id applies to all.
type rule struct {
	method, id string
	// left is the number of remaining calls; negative: no limit.
	left  int
	err   error
	delay time.Duration
	gate  *Gate
}

// Fail makes the next calls of a method about an id fail with err: as many as times, all when it is negative. The id is
// that of a sandbox or container, the UID of a pod, which applies to all its calls, or an image; an empty id applies to
// all. Use status errors of grpc for codes. The returned function removes the rule.
func (s *Server) Fail(method, id string, times int, err error) (undo func()) {
	return s.script.add(&rule{method: method, id: id, left: times, err: err})
}

// Delay delays every call of a method about an id. The returned function removes the rule for later calls.
func (s *Server) Delay(method, id string, delay time.Duration) (undo func()) {
	return s.script.add(&rule{method: method, id: id, left: -1, delay: delay})
}

// Hang makes every call of a method about an id wait until the gate is opened, or the caller gives up.
func (s *Server) Hang(method, id string) *Gate {
	gate := &Gate{open: make(chan struct{})}
	gate.undo = s.script.add(&rule{method: method, id: id, left: -1, gate: gate})
	return gate
}

// Gate blocks calls.
type Gate struct {
	undo func()
	once sync.Once
	open chan struct{}

	mu      sync.Mutex
	waiting int
	reached int
}

// Open releases the waiting calls and all later ones.
func (g *Gate) Open() {
	g.once.Do(func() {
		g.undo()
		close(g.open)
	})
}

// Waiting returns the number of waiting calls.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.waiting
}

// Reached returns the number of calls that have reached the gate since it was created.
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

// Calls returns the calls so far, in the order of their arrival.
func (s *Server) Calls() []Call {
	s.script.mu.Lock()
	defer s.script.mu.Unlock()
	return slices.Clone(s.script.calls)
}

// ResetCalls clears the log of calls.
func (s *Server) ResetCalls() {
	s.script.mu.Lock()
	defer s.script.mu.Unlock()
	s.script.calls = nil
	clear(s.script.maxInFlight)
}

// Count returns the number of calls of a method about an id; an empty id counts all.
func (s *Server) Count(method, id string) int {
	n := 0
	for _, call := range s.Calls() {
		if call.Method == method && call.isAbout(id) {
			n++
		}
	}
	return n
}

// MaxInFlight returns the highest number of simultaneous calls of a method.
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

// enter records the call and applies the matching rules; done has to be called when the call is answered.
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

// traceparent returns the trace context in a call's metadata.
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

// isAbout reports whether a call is about an id, or the pod with a UID; an empty id matches any call.
func (c Call) isAbout(id string) bool {
	return id == "" || id == c.PodUID || slices.Contains(c.IDs, id)
}

// podOf returns the UID of the pod to which one of the ids belongs.
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

// idsOf returns the subjects of a request.
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
