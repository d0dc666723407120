package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/test/fakecri"
)

const (
	lifecycle   = "quartet.lifecycle.v1.LifecycleService"
	watchEvents = lifecycle + ".WatchEvents"
	getStatus   = lifecycle + ".GetPodStatus"
	eventType   = "quartet.lifecycle.v1.EventType."
)

const (
	started = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED
	died    = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED
	removed = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED
	podSync = lifecyclev1.EventType_EVENT_TYPE_POD_SYNC
)

// PLEG returns the rules of pleg: quartet.lifecycle.v1, and the stream contract for its events.
func PLEG() Suite {
	return Suite{Service: "pleg", rules: slices.Concat(plegStreamRules(), plegEventRules(), plegStatusRules(),
		plegTroubleRules())}
}

// plegBench is a bench with a pleg and its runtime.
type plegBench struct {
	*bench
	client  lifecyclev1.LifecycleServiceClient
	runtime *fakecri.Server
	// pods counts the pods of this rule.
	pods int
}

// need says what a check needs.
type need int

const (
	nothing need = iota
	aRuntime
	aRestart
)

func plegRule(name, comment, text string, needs need, check func(context.Context, *plegBench) error) rule {
	return rule{Rule{Name: name, Comment: comment, Text: text}, func(ctx context.Context, b *bench) error {
		p := &plegBench{bench: b, client: lifecyclev1.NewLifecycleServiceClient(b.part.Conn)}
		if needs >= aRuntime && b.part.Runtime == nil {
			return skip("it needs a runtime that it may change: see --serve-runtime")
		}
		if needs == aRestart {
			if err := b.needsRestart(); err != nil {
				return err
			}
		}
		if b.part.Runtime != nil {
			p.runtime = b.part.Runtime.cri
			if err := p.relisted(ctx); err != nil {
				return err
			}
		}
		return check(ctx, p)
	}}
}

// relisted waits until the pleg has seen the runtime as it is.
func (p *plegBench) relisted(ctx context.Context) error {
	return p.eventually(ctx, func(ctx context.Context) error {
		_, err := p.client.RequestRelist(ctx, &lifecyclev1.RequestRelistRequest{}, ready())
		if err != nil {
			return fmt.Errorf("RequestRelist: %w", err)
		}
		return nil
	})
}

// restart restarts the pleg, and waits until it serves.
func (p *plegBench) restart(ctx context.Context) error {
	if err := p.part.Restart(ctx); err != nil {
		return fmt.Errorf("restarting it: %w", err)
	}
	return p.eventually(ctx, func(ctx context.Context) error {
		_, err := p.client.GetHealth(ctx, &lifecyclev1.GetHealthRequest{}, ready())
		return err
	})
}

// scriptedPod is a pod in the runtime.
type scriptedPod struct {
	p            *plegBench
	uid, sandbox string
	// containers are the present containers by name, and attempts their attempts.
	containers map[string]string
	attempts   map[string]uint32
}

// run adds a pod with running containers to the runtime. The clean-up removes it.
func (p *plegBench) run(containers ...string) *scriptedPod {
	return p.runPod(fakecri.Pod{Containers: containers})
}

func (p *plegBench) runPod(pod fakecri.Pod) *scriptedPod {
	p.pods++
	pod.UID = fmt.Sprintf("conformance-%s-%d", p.rule, p.pods)
	made := &scriptedPod{p: p, uid: pod.UID, attempts: map[string]uint32{}}
	made.sandbox, made.containers = p.runtime.RunPod(pod)
	p.cleanup(func(ctx context.Context) error { made.drop(); return p.relisted(ctx) })
	return made
}

// drop removes the pod from the runtime if it is there.
func (s *scriptedPod) drop() {
	for _, id := range s.p.runtime.Sandboxes() {
		if config, _ := s.p.runtime.SandboxConfig(id); config.GetMetadata().GetUid() == s.uid {
			s.p.runtime.DropSandbox(id)
		}
	}
}

// again kills a container and starts its next attempt. It returns the ID of the one that was killed.
func (s *scriptedPod) again(name string) string {
	old := s.containers[name]
	s.p.runtime.Kill(old)
	s.attempts[name]++
	s.containers[name] = s.p.runtime.AddContainer(s.sandbox, name, s.attempts[name])
	return old
}

// events is the watch of the pleg's events.
func (p *plegBench) events(ctx context.Context, token []byte) (receive, error) {
	stream, err := p.client.WatchEvents(ctx, &lifecyclev1.WatchEventsRequest{ResumeToken: token}, ready())
	if err != nil {
		return nil, err
	}
	return func() (message, error) {
		m, err := stream.Recv()
		if err != nil {
			return message{}, err
		}
		if m.GetFrame() == nil {
			return message{}, errors.New("a message without a frame")
		}
		got := message{Frame: m.GetFrame()}
		if m.GetEvent() != nil {
			got.payload = m.GetEvent()
		}
		return got, nil
	}, nil
}

// eventOf returns the event of a message; nil without one.
func eventOf(m message) *lifecyclev1.Event {
	event, _ := m.payload.(*lifecyclev1.Event)
	return event
}

// is matches the events of a type and a container, or a pod if id is its UID.
func is(kind lifecyclev1.EventType, id string) func(message) bool {
	return func(m message) bool {
		e := eventOf(m)
		return m.GetKind() == streamv1.Kind_KIND_DELTA && e.GetType() == kind &&
			(e.GetContainerId() == id || e.GetPodUid() == id)
	}
}

// event waits for an event.
func (p *plegBench) event(
	ctx context.Context, s *subscription, kind lifecyclev1.EventType, id string,
) (*lifecyclev1.Event, message, error) {
	m, err := s.until(ctx, p.patience, fmt.Sprintf("the event %v of %s", kind, id), is(kind, id))
	return eventOf(m), m, err
}

// follow subscribes and reads the begin. A new subscription begins when the pleg has seen the runtime as it is.
func (p *plegBench) follow(ctx context.Context, token []byte) (*subscription, state, error) {
	if len(token) == 0 {
		if err := p.relisted(ctx); err != nil {
			return nil, state{}, err
		}
	}
	return p.watching(ctx, p.events, token)
}
