package conformance_test

import (
	"path"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quartet-node/quartet/conformance"
	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/internal/boottime"
)

const (
	started = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_STARTED
	died    = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_DIED
	removed = lifecyclev1.EventType_EVENT_TYPE_CONTAINER_REMOVED
	podSync = lifecyclev1.EventType_EVENT_TYPE_POD_SYNC

	delta    = streamv1.Kind_KIND_DELTA
	snapshot = streamv1.Kind_KIND_SNAPSHOT
)

// TestBrokenPLEGsFailTheRuleThatTheyBreak has a pleg for each fault.
func TestBrokenPLEGsFailTheRuleThatTheyBreak(t *testing.T) {
	covered := map[string][]string{}
	for _, tc := range slices.Concat(brokenStreams(), brokenEvents(), brokenStatuses()) {
		covered[tc.rule] = append(covered[tc.rule], tc.name)
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			checkBroken(t, conformance.PLEG(), ownPLEG(t), tc.rule, tc.fault)
		})
	}
	everyRuleCanFail(t, conformance.PLEG(), covered)
}

// brokenCase is a fault and the rule that it breaks.
type brokenCase struct {
	name, rule string
	fault      fault
}

type event = lifecyclev1.WatchEventsResponse

// events is a fault of the event stream. resumed is true if the subscription has a token.
func events(change func(resumed bool) func(*event) []*event) fault {
	return fault{stream: func(_ string, request proto.Message) func(proto.Message) []proto.Message {
		each := change(len(request.(*lifecyclev1.WatchEventsRequest).GetResumeToken()) > 0)
		return func(m proto.Message) []proto.Message {
			var out []proto.Message
			for _, m := range each(m.(*event)) {
				out = append(out, m)
			}
			return out
		}
	}}
}

// without drops the messages that match.
func without(matches func(*event) bool) fault {
	return events(func(bool) func(*event) []*event {
		return func(m *event) []*event {
			if matches(m) {
				return nil
			}
			return []*event{m}
		}
	})
}

// edited edits each message.
func edited(edit func(*event)) fault {
	return without(func(m *event) bool { edit(m); return false })
}

func isDelta(m *event, kind lifecyclev1.EventType) bool {
	return m.GetFrame().GetKind() == delta && m.GetEvent().GetType() == kind
}

func brokenStreams() []brokenCase {
	var sending sync.Mutex
	var told []*event
	return []brokenCase{
		{"a stream without OPENED", "stream-frames", without(func(m *event) bool {
			return m.GetFrame().GetKind() == streamv1.Kind_KIND_OPENED
		})},
		{"a delta inside the snapshot", "stream-frames", edited(func(m *event) {
			if m.GetFrame().GetKind() == snapshot {
				m.Frame.Kind = delta
			}
		})},
		{"a delta without a key", "stream-frames", edited(func(m *event) {
			if m.GetFrame().GetKind() == delta {
				m.Frame.Key = ""
			}
		})},
		{"a token of a snapshot", "stream-tokens", edited(func(m *event) {
			if m.GetFrame().GetKind() == snapshot {
				m.Frame.ResumeToken = []byte("x")
			}
		})},
		{"a delta without a token", "stream-tokens", edited(func(m *event) {
			if m.GetFrame().GetKind() == delta {
				m.Frame.ResumeToken = nil
			}
		})},
		{"tokens that are not read", "stream-invalid-token", fault{request: func(_ string, request proto.Message) {
			if r, ok := request.(*lifecyclev1.WatchEventsRequest); ok {
				r.ResumeToken = nil
			}
		}}},
		{"a removal before the death", "stream-ordered", events(func(bool) func(*event) []*event {
			var held []*event
			return func(m *event) []*event {
				if isDelta(m, died) {
					held = append(held, m)
					return nil
				}
				if isDelta(m, removed) {
					out := append([]*event{m}, held...)
					held = nil
					return out
				}
				return []*event{m}
			}
		})},
		{"each event twice", "stream-unique", events(func(bool) func(*event) []*event {
			return func(m *event) []*event {
				if m.GetFrame().GetKind() == delta {
					return []*event{m, m}
				}
				return []*event{m}
			}
		})},
		{"a lost death", "stream-reliable", events(func(bool) func(*event) []*event {
			count := 0
			return func(m *event) []*event {
				if isDelta(m, died) {
					if count++; count == 5 {
						return nil
					}
				}
				return []*event{m}
			}
		})},
		{"a loss at a resumption", "stream-resumable", events(func(resumed bool) func(*event) []*event {
			first := resumed
			return func(m *event) []*event {
				if first && m.GetFrame().GetKind() == delta {
					first = false
					return nil
				}
				return []*event{m}
			}
		})},
		{"tokens that are forgotten", "stream-resumable", edited(func(m *event) {
			if o := m.GetFrame().GetOpening(); o != nil {
				o.Start = streamv1.Start_START_SNAPSHOT
			}
		})},
		{"a subscriber that holds up others", "stream-bounded", fault{sending: func(send func() error) error {
			sending.Lock()
			defer sending.Unlock()
			return send()
		}}},
		{"a stream without bookmarks", "stream-bookmark", without(func(m *event) bool {
			return m.GetFrame().GetKind() == streamv1.Kind_KIND_BOOKMARK
		})},
		{"an event again after a restart", "stream-restart", events(func(resumed bool) func(*event) []*event {
			begin := resumed
			return func(m *event) []*event {
				if m.GetFrame().GetKind() == delta && begin {
					begin = false
					return append(slices.Clone(told), m)
				}
				if m.GetFrame().GetKind() == delta && !resumed {
					told = append(told, m)
				}
				return []*event{m}
			}
		})},
	}
}

func brokenEvents() []brokenCase {
	streams := 0
	return []brokenCase{
		{"a snapshot of some pods", "snapshot", events(func(bool) func(*event) []*event {
			count := 0
			return func(m *event) []*event {
				if m.GetFrame().GetKind() == snapshot {
					if count++; count == 2 {
						return nil
					}
				}
				return []*event{m}
			}
		})},
		{"a snapshot of starts", "snapshot", edited(func(m *event) {
			if m.GetFrame().GetKind() == snapshot {
				m.Event.Type = started
			}
		})},
		{"few subscribers", "subscribers", events(func(bool) func(*event) []*event {
			streams++
			served := streams <= 10
			return func(m *event) []*event {
				if !served && m.GetFrame().GetKind() == delta {
					return nil
				}
				return []*event{m}
			}
		})},
		{"no starts", "container-started", without(func(m *event) bool { return isDelta(m, started) })},
		{"no exit codes", "container-died", edited(func(m *event) {
			if m.GetEvent() != nil {
				m.Event.ExitCode = 0
			}
		})},
		{"only deaths that were seen", "container-died-unseen", without(func(m *event) bool {
			return isDelta(m, died) && !slices.ContainsFunc(m.GetEvent().GetStatus().GetContainers(),
				func(c *lifecyclev1.Container) bool { return c.GetId() == m.GetEvent().GetContainerId() })
		})},
		{"no removals", "container-removed", without(func(m *event) bool { return isDelta(m, removed) })},
		{"no sandboxes", "sandbox-ended", without(func(m *event) bool { return isDelta(m, podSync) })},
		{"no end of a pod", "pod-gone", edited(func(m *event) { m.Frame.Removed = false })},
		{"only the last death", "deaths-never-fold", without(func(m *event) bool {
			return isDelta(m, died) && len(m.GetEvent().GetStatus().GetContainers()) > 0 &&
				m.GetEvent().GetStatus().GetContainers()[0].GetId() != m.GetEvent().GetContainerId() &&
				m.GetEvent().GetStatus().GetContainers()[1].GetId() != m.GetEvent().GetContainerId()
		})},
	}
}

// answers is a fault of the answers of a unary RPC. edit returns the error of the call.
func answers[Answer proto.Message](method string, edit func(Answer, error) error) fault {
	return fault{answer: func(called string, _, answer proto.Message, err error) (proto.Message, error) {
		if path.Base(called) == method {
			err = edit(answer.(Answer), err)
		}
		return answer, err
	}}
}

func podStatus(edit func(*lifecyclev1.PodStatus)) fault {
	return answers("GetPodStatus", func(answer *lifecyclev1.GetPodStatusResponse, err error) error {
		if err == nil {
			edit(answer.GetStatus())
		}
		return err
	})
}

func list(edit func([]*lifecyclev1.PodStatus) []*lifecyclev1.PodStatus) fault {
	return answers("ListPodStatuses", func(answer *lifecyclev1.ListPodStatusesResponse, err error) error {
		answer.Statuses = edit(answer.GetStatuses())
		return err
	})
}

func health(edit func(*lifecyclev1.GetHealthResponse)) fault {
	return answers("GetHealth", func(answer *lifecyclev1.GetHealthResponse, err error) error {
		edit(answer)
		return err
	})
}

func newerThan(value func(int64) int64) fault {
	return fault{request: func(_ string, request proto.Message) {
		if r, ok := request.(*lifecyclev1.GetPodStatusRequest); ok {
			r.NewerThanBoottimeNs = value(r.GetNewerThanBoottimeNs())
		}
	}}
}

func brokenStatuses() []brokenCase {
	var one sync.Mutex
	return []brokenCase{
		{"no start time", "status-fields", podStatus(func(s *lifecyclev1.PodStatus) {
			for _, c := range s.GetContainers() {
				c.StartedAt = nil
			}
		})},
		{"another clock", "status-fields", podStatus(func(s *lifecyclev1.PodStatus) {
			s.ObservedBoottimeNs = s.GetObservedAt().AsTime().UnixNano()
		})},
		{"oldest first", "status-newest-first", podStatus(func(s *lifecyclev1.PodStatus) {
			slices.Reverse(s.GetContainers())
		})},
		{"no host network", "status-host-network", podStatus(func(s *lifecyclev1.PodStatus) {
			for _, sandbox := range s.GetSandboxes() {
				sandbox.HostNetwork = false
			}
		})},
		{"always the record", "status-newer-than", newerThan(func(int64) int64 { return 0 })},
		{"an error for an unknown pod", "status-unknown-pod",
			answers("GetPodStatus", func(answer *lifecyclev1.GetPodStatusResponse, err error) error {
				if len(answer.GetStatus().GetSandboxes()) == 0 {
					return status.Error(codes.NotFound, "no such pod")
				}
				return err
			})},
		{"any argument", "status-arguments",
			answers("GetPodStatus", func(_ *lifecyclev1.GetPodStatusResponse, _ error) error { return nil })},
		{"a list of some pods", "list", list(func(all []*lifecyclev1.PodStatus) []*lifecyclev1.PodStatus {
			return all[:len(all)-1]
		})},
		{"an unsorted list", "list-sorted", list(func(all []*lifecyclev1.PodStatus) []*lifecyclev1.PodStatus {
			slices.Reverse(all)
			return all
		})},
		{"a list of everything", "list-foreign", list(func(all []*lifecyclev1.PodStatus) []*lifecyclev1.PodStatus {
			return append(all, &lifecyclev1.PodStatus{Name: "foreign"})
		})},
		{"an earlier relist", "relist",
			answers("RequestRelist", func(answer *lifecyclev1.RequestRelistResponse, err error) error {
				answer.RelistedAt = timestamppb.New(answer.GetRelistedAt().AsTime().AddDate(0, 0, -1))
				return err
			})},
		{"a relist without new pods", "relist", list(func([]*lifecyclev1.PodStatus) []*lifecyclev1.PodStatus {
			return nil
		})},
		{"healthy with a reason", "health", health(func(h *lifecyclev1.GetHealthResponse) {
			h.Reasons = append(h.Reasons, "it is not")
		})},
		{"one call at a time", "hang-stays-local", fault{calling: func(method string, call func() error) error {
			if path.Base(method) == "GetPodStatus" {
				one.Lock()
				defer one.Unlock()
			}
			return call()
		}}},
		{"never the record", "hang-record", newerThan(func(int64) int64 { return int64(boottime.Now()) })},
		{"no inspect error", "inspect-error", podStatus(func(s *lifecyclev1.PodStatus) { s.InspectError = "" })},
		{"another code", "runtime-away",
			answers("GetPodStatus", func(_ *lifecyclev1.GetPodStatusResponse, err error) error {
				if status.Code(err) == codes.Unavailable {
					return status.Error(codes.Internal, err.Error())
				}
				return err
			})},
		{"always healthy", "runtime-not-ready", health(func(h *lifecyclev1.GetHealthResponse) {
			h.Healthy, h.Reasons = true, nil
		})},
		{"no pods before the first relist", "before-first-relist",
			answers("ListPodStatuses", func(_ *lifecyclev1.ListPodStatusesResponse, _ error) error { return nil })},
	}
}
