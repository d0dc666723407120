package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
)

const streamContract = "quartet.stream.v1"

// plegStreamRules are the rules of the stream contract, for a stream of events.
func plegStreamRules() []rule {
	return []rule{
		plegRule("stream-frames", streamContract, "The order of frames on one subscription is always", aRuntime,
			plegFrames),
		plegRule("stream-tokens", "quartet.stream.v1.Frame.resume_token",
			"Set on DELTA, SYNCED and BOOKMARK, and on OPENED if the subscription was resumed. Empty on SNAPSHOT",
			aRuntime, plegTokens),
		plegRule("stream-invalid-token", "quartet.stream.v1.Start.START_SNAPSHOT_INVALID",
			"The token cannot be read: a snapshot follows.", nothing, func(ctx context.Context, p *plegBench) error {
				return p.invalidToken(ctx, p.events)
			}),
		plegRule("stream-ordered", streamContract, "the changes of one key arrive in the order in which they happened",
			aRuntime, plegOrdered),
		plegRule("stream-unique", streamContract,
			"no change arrives twice on one subscription, including its resumptions", aRuntime, plegUnique),
		plegRule("stream-reliable", streamContract, "there is no unannounced gap", aRuntime, plegReliable),
		plegRule("stream-resumable", streamContract,
			"a token yields exactly the missed changes, or a fresh snapshot that is announced as such", aRuntime,
			plegResumable),
		plegRule("stream-bounded", streamContract,
			"a slow subscriber costs memory in proportion to the number of keys, and not of changes", aRuntime,
			plegBounded),
		plegRule("stream-bookmark", "quartet.stream.v1.Kind.KIND_BOOKMARK",
			"Nothing has happened for 10 s, and the stream is alive.", aRuntime, plegBookmark),
		plegRule("stream-restart", watchEvents, "So no subscriber receives an event twice.", aRestart, plegRestart),
	}
}

// invalidToken checks the begin of a subscription with a token that nobody has made.
func (b *bench) invalidToken(ctx context.Context, open watch) error {
	_, begun, err := b.watching(ctx, open, []byte("no token of yours"))
	if err != nil {
		return err
	}
	if begun.start != streamv1.Start_START_SNAPSHOT_INVALID {
		return fmt.Errorf("a token that nobody has made begins with %v", begun.start)
	}
	return nil
}

// plegFrames checks the frames of a new and of a resumed subscription, with changes during both.
func plegFrames(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	p.run("other")
	if err := p.relisted(ctx); err != nil {
		return err
	}
	var token []byte
	for range 2 {
		s, err := subscribe(ctx, p.events, token)
		if err != nil {
			return err
		}
		s.grammar = &grammar{given: len(token) > 0}
		if _, err := s.begin(ctx, p.patience); err != nil {
			return err
		}
		if _, _, err := p.event(ctx, s, died, pod.again("app")); err != nil {
			return err
		}
		s.close()
		token = s.token
	}
	return nil
}

// plegTokens checks the tokens of the frames of a new and of a resumed subscription.
func plegTokens(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	if err := p.relisted(ctx); err != nil {
		return err
	}
	var token []byte
	for range 2 {
		s, err := subscribe(ctx, p.events, token)
		if err != nil {
			return err
		}
		resumed, deltas := false, 0
		for deltas < 2 {
			m, err := s.next(ctx, p.patience)
			if err != nil {
				return err
			}
			resumed = resumed || m.GetOpening().GetStart() == streamv1.Start_START_RESUMED
			if err := tokens(m, resumed); err != nil {
				return err
			}
			begun := m.GetKind() == streamv1.Kind_KIND_SYNCED ||
				m.GetKind() == streamv1.Kind_KIND_OPENED && resumed
			if begun {
				pod.again("app")
			}
			if m.GetKind() == streamv1.Kind_KIND_DELTA {
				deltas++
			}
		}
		s.close()
		token = s.token
	}
	return nil
}

// plegOrdered checks the order of the events of containers that start, end and are removed.
func plegOrdered(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	const lives = 10
	var ended []string
	for range lives {
		ended = append(ended, pod.again("app"))
	}
	order := eventOrder{reached: map[string]lifecyclev1.EventType{}}
	if err := order.until(ctx, p, s, started, pod.containers["app"]); err != nil {
		return err
	}
	for _, id := range ended {
		p.runtime.DropContainer(id)
	}
	return order.until(ctx, p, s, removed, ended[lives-1])
}

// eventOrder checks the order of events.
type eventOrder struct {
	observed int64
	// reached has the last event of each container. The values of STARTED, DIED and REMOVED are in their order.
	reached map[string]lifecyclev1.EventType
}

// until checks events until that of a kind and a container.
func (o *eventOrder) until(
	ctx context.Context, p *plegBench, s *subscription, kind lifecyclev1.EventType, id string,
) error {
	for {
		m, err := s.next(ctx, p.patience)
		if err != nil {
			return fmt.Errorf("waiting for the event %v of %s: %w", kind, id, err)
		}
		e := eventOf(m)
		if e == nil {
			continue
		}
		if at := e.GetStatus().GetObservedBoottimeNs(); at < o.observed {
			return fmt.Errorf("the status of %v was observed at %d, and that of an earlier event at %d", e.GetType(), at,
				o.observed)
		}
		o.observed = e.GetStatus().GetObservedBoottimeNs()
		if about := e.GetContainerId(); about != "" {
			if e.GetType() <= o.reached[about] {
				return fmt.Errorf("the event %v of %s came after %v", e.GetType(), about, o.reached[about])
			}
			o.reached[about] = e.GetType()
		}
		if is(kind, id)(m) {
			return nil
		}
	}
}

// plegUnique breaks the subscription off after each few messages, and resumes it.
func plegUnique(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for round := range 6 {
		last := pod.again("app")
		for reads := 0; ; reads++ {
			m, err := s.next(ctx, p.patience)
			if err != nil {
				return fmt.Errorf("waiting for the event %v of %s: %w", died, last, err)
			}
			if m.GetKind() != streamv1.Kind_KIND_DELTA {
				continue
			}
			text, err := proto.MarshalOptions{Deterministic: true}.Marshal(eventOf(m))
			if err != nil {
				return err
			}
			if seen[string(text)] {
				return fmt.Errorf("the event %v of %s arrived twice", eventOf(m).GetType(), m.GetKey())
			}
			seen[string(text)] = true
			if is(died, last)(m) {
				break
			}
		}
		if round%2 == 0 {
			continue
		}
		s.close()
		if s, _, err = p.follow(ctx, s.token); err != nil {
			return err
		}
	}
	return nil
}

// plegReliable checks that each of many deaths has an event.
func plegReliable(ctx context.Context, p *plegBench) error {
	pods := []*scriptedPod{p.run("app", "side"), p.run("app"), p.run("app")}
	s, begun, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		if begun.entries[pod.uid] == nil {
			return fmt.Errorf("the snapshot lacks the pod %s", pod.uid)
		}
	}
	missing := map[string]bool{}
	for range 10 {
		for _, pod := range pods {
			for name := range pod.containers {
				missing[pod.again(name)] = true
			}
		}
	}
	return p.deaths(ctx, s, missing)
}

// deaths waits for the death of each of the containers, once.
func (p *plegBench) deaths(ctx context.Context, s *subscription, missing map[string]bool) error {
	for len(missing) > 0 {
		m, err := s.next(ctx, p.patience)
		if errors.Is(err, errSilent) {
			return fmt.Errorf("%d containers have ended without the event %v", len(missing), died)
		}
		if err != nil {
			return err
		}
		if e := eventOf(m); m.GetKind() == streamv1.Kind_KIND_DELTA && e.GetType() == died {
			delete(missing, e.GetContainerId())
		}
	}
	return nil
}

// plegResumable subscribes again with each token of a sequence of events.
func plegResumable(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	tokens, events := [][]byte{s.token}, []*lifecyclev1.Event{}
	var last string
	for range 4 {
		last = pod.again("app")
	}
	current := pod.containers["app"]
	for done := false; !done; {
		m, err := s.next(ctx, p.patience)
		if err != nil {
			return fmt.Errorf("waiting for the start of %s: %w", current, err)
		}
		if m.GetKind() == streamv1.Kind_KIND_DELTA {
			tokens, events = append(tokens, m.GetResumeToken()), append(events, eventOf(m))
			done = is(started, current)(m)
		}
	}
	s.close()
	for i, token := range tokens {
		if err := p.resume(ctx, token, events[i:], last); err != nil {
			return fmt.Errorf("resuming after %d of %d events: %w", i, len(events), err)
		}
	}
	return nil
}

// resume checks that a token yields the events after it, or a snapshot in which the container has ended.
func (p *plegBench) resume(ctx context.Context, token []byte, want []*lifecyclev1.Event, ended string) error {
	s, begun, err := p.follow(ctx, token)
	if err != nil {
		return err
	}
	defer s.close()
	switch begun.start { //nolint:exhaustive // every other start is an error
	case streamv1.Start_START_RESUMED:
	case streamv1.Start_START_SNAPSHOT_COMPACTED, streamv1.Start_START_SNAPSHOT_EPOCH:
		return endedIn(begun, ended)
	default:
		return fmt.Errorf("a valid token begins with %v", begun.start)
	}
	for i, event := range want {
		m, err := s.next(ctx, p.patience)
		if err != nil {
			return fmt.Errorf("missed event %d: %w", i, err)
		}
		if !proto.Equal(event, eventOf(m)) {
			return fmt.Errorf("missed event %d is %v of %q, it was %v of %q before", i, eventOf(m).GetType(),
				eventOf(m).GetContainerId(), event.GetType(), event.GetContainerId())
		}
	}
	return nil
}

// endedIn returns an error unless a container has ended according to a snapshot.
func endedIn(begun state, id string) error {
	for _, entry := range begun.entries {
		event, _ := entry.(*lifecyclev1.Event)
		for _, c := range event.GetStatus().GetContainers() {
			if c.GetId() == id && c.GetState() == lifecyclev1.ContainerState_CONTAINER_STATE_EXITED {
				return nil
			}
		}
	}
	return fmt.Errorf("the fresh snapshot (%v) does not show that %s has ended", begun.start, id)
}

// plegBounded has a subscriber that does not read while another one follows many events.
func plegBounded(ctx context.Context, p *plegBench) error {
	pods := []*scriptedPod{p.run("app"), p.run("app"), p.run("app"), p.run("app"), p.run("app")}
	awake, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	stuck, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	all, seen := map[string]bool{}, map[string]bool{}
	for range 30 {
		for _, pod := range pods {
			id := pod.again("app")
			all[id], seen[id] = true, true
		}
	}
	if err := p.deaths(ctx, awake, seen); err != nil {
		return fmt.Errorf("while another subscriber does not read: %w", err)
	}
	err = p.deaths(ctx, stuck, all)
	if err == nil {
		return nil
	}
	if code := status.Code(rootOf(err)); code != codes.ResourceExhausted {
		return fmt.Errorf("the subscriber that did not read: %w; want all events, or the code %v", err,
			codes.ResourceExhausted)
	}
	_, begun, err := p.follow(ctx, stuck.token)
	if err != nil {
		return err
	}
	if begun.start == streamv1.Start_START_RESUMED {
		return errors.New("the subscriber has missed events, and its token is resumed")
	}
	return nil
}

// rootOf returns the innermost error.
func rootOf(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// bookmarkAfter is the silence after which a bookmark is due, with some time for a busy machine.
const bookmarkAfter = 15 * time.Second

// plegBookmark waits in silence, and resumes after the bookmark.
func plegBookmark(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	bookmark, err := s.until(ctx, bookmarkAfter, "a bookmark", func(m message) bool {
		return m.GetKind() == streamv1.Kind_KIND_BOOKMARK
	})
	if err != nil {
		return err
	}
	s.close()
	last := pod.again("app")
	s, begun, err := p.follow(ctx, bookmark.GetResumeToken())
	if err != nil {
		return err
	}
	if begun.start != streamv1.Start_START_RESUMED {
		return endedIn(begun, last)
	}
	_, _, err = p.event(ctx, s, died, last)
	return err
}

// plegRestart resumes after a restart of the pleg, during which a container ends.
func plegRestart(ctx context.Context, p *plegBench) error {
	pod := p.run("app")
	s, _, err := p.follow(ctx, nil)
	if err != nil {
		return err
	}
	before := pod.again("app")
	if _, _, err := p.event(ctx, s, died, before); err != nil {
		return err
	}
	if _, _, err := p.event(ctx, s, started, pod.containers["app"]); err != nil {
		return err
	}
	s.close()
	if err := p.restart(ctx); err != nil {
		return err
	}
	meanwhile := pod.again("app")
	s, begun, err := p.follow(ctx, s.token)
	if err != nil {
		return err
	}
	switch begun.start { //nolint:exhaustive // every other start is an error
	case streamv1.Start_START_RESUMED:
	case streamv1.Start_START_SNAPSHOT_EPOCH, streamv1.Start_START_SNAPSHOT_COMPACTED:
		if err := endedIn(begun, meanwhile); err == nil {
			meanwhile = ""
		}
	default:
		return fmt.Errorf("a token of the process before begins with %v", begun.start)
	}
	// The last one shows that the events before it are complete.
	last := pod.again("app")
	for {
		m, err := s.next(ctx, p.patience)
		switch {
		case err != nil:
			return fmt.Errorf("waiting for the event %v of %s: %w", died, last, err)
		case is(died, before)(m):
			return fmt.Errorf("the event %v of %s arrived before the restart and after it", died, before)
		case is(died, meanwhile)(m):
			meanwhile = ""
		case is(died, last)(m) && meanwhile != "":
			return fmt.Errorf("the container %s has ended during the restart, and no event tells it", meanwhile)
		case is(died, last)(m):
			return nil
		}
	}
}
