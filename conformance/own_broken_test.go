package conformance_test

import (
	"path"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quartet-node/quartet/conformance"
	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	enginev1 "github.com/quartet-node/quartet/gen/quartet/engine/v1"
	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
)

// TestBrokenServicesFailTheRuleThatTheyBreak has a part for each fault of the other three services.
func TestBrokenServicesFailTheRuleThatTheyBreak(t *testing.T) {
	for _, tc := range []struct {
		suite conformance.Suite
		part  func(*testing.T) conformance.Part
		cases []brokenCase
	}{
		{conformance.ConfigMux(), ownConfigMux, slices.Concat(brokenLevels("objects"), brokenConfigs())},
		{conformance.NodeStatus(), ownNodeStatus, slices.Concat(brokenLevels("node-events"), brokenNodes())},
		{conformance.SyncLoop(), ownSyncLoop, slices.Concat(brokenLevels("pod-events", "storage"), brokenEngines())},
	} {
		t.Run(tc.suite.Service, func(t *testing.T) {
			t.Parallel()
			part, covered := tc.part(t), map[string][]string{}
			for _, c := range tc.cases {
				covered[c.rule] = append(covered[c.rule], c.name)
				t.Run(c.name, func(t *testing.T) { checkBroken(t, tc.suite, part, c.rule, c.fault) })
			}
			everyRuleCanFail(t, tc.suite, covered)
		})
	}
}

// frames is a fault of the frames of every stream. change returns false to drop one.
func frames(change func(resumed bool) func(*streamv1.Frame) bool) fault {
	return fault{stream: func(_ string, request proto.Message) func(proto.Message) []proto.Message {
		token := request.(interface{ GetResumeToken() []byte }).GetResumeToken()
		each := change(len(token) > 0)
		return func(m proto.Message) []proto.Message {
			if !each(m.(interface{ GetFrame() *streamv1.Frame }).GetFrame()) {
				return nil
			}
			return []proto.Message{m}
		}
	}}
}

// eachFrame is a fault of the frames without a state.
func eachFrame(change func(*streamv1.Frame) bool) fault {
	return frames(func(bool) func(*streamv1.Frame) bool { return change })
}

// brokenLevels are the faults of the level-triggered streams of a service: its first one, and more by their names.
func brokenLevels(more ...string) []brokenCase {
	all := brokenStream()
	for _, stream := range more {
		for _, c := range brokenStream() {
			if c.rule != "stream-version" {
				all = append(all, brokenCase{name: stream + ": " + c.name, rule: stream + "-" + c.rule, fault: c.fault})
			}
		}
	}
	return all
}

// brokenStream are the faults of a level-triggered stream.
func brokenStream() []brokenCase {
	return []brokenCase{
		{"a stream without OPENED", "stream-frames", eachFrame(func(f *streamv1.Frame) bool {
			return f.GetKind() != streamv1.Kind_KIND_OPENED
		})},
		{"the end of a snapshot without a token", "stream-tokens", eachFrame(func(f *streamv1.Frame) bool {
			if f.GetKind() == streamv1.Kind_KIND_SYNCED {
				f.ResumeToken = nil
			}
			return true
		})},
		{"no version", "stream-version", eachFrame(func(f *streamv1.Frame) bool {
			if f.GetOpening() != nil {
				f.Opening.KubernetesApiVersion = ""
			}
			return true
		})},
		{"any token", "stream-invalid-token", eachFrame(func(f *streamv1.Frame) bool {
			if f.GetOpening() != nil {
				f.Opening.Start = streamv1.Start_START_SNAPSHOT_EPOCH
			}
			return true
		})},
		{"tokens that are forgotten", "stream-resumable", fault{request: func(_ string, request proto.Message) {
			m := request.ProtoReflect()
			if token := m.Descriptor().Fields().ByName("resume_token"); token != nil {
				m.Clear(token)
			}
		}}},
		{"no bookmarks", "stream-bookmark", eachFrame(func(f *streamv1.Frame) bool {
			return f.GetKind() == streamv1.Kind_KIND_OPENED || f.GetKind() == streamv1.Kind_KIND_SYNCED ||
				f.GetKind() == streamv1.Kind_KIND_SNAPSHOT
		})},
	}
}

// noDeltas drops each change.
func noDeltas() fault {
	return eachFrame(func(f *streamv1.Frame) bool { return f.GetKind() != delta })
}

// noSnapshot drops each entry of a snapshot.
func noSnapshot() fault {
	return eachFrame(func(f *streamv1.Frame) bool { return f.GetKind() != snapshot })
}

// withCode replaces the code of every call of a method; codes.OK makes it succeed.
func withCode(method string, code codes.Code) fault {
	return fault{answer: func(called string, _, answer proto.Message, err error) (proto.Message, error) {
		if path.Base(called) != method {
			return answer, err
		}
		if code == codes.OK {
			return answer, nil
		}
		return answer, status.Error(code, "broken")
	}}
}

func brokenConfigs() []brokenCase {
	reversed := func() fault {
		return fault{answer: func(_ string, _, answer proto.Message, err error) (proto.Message, error) {
			switch r := answer.(type) {
			case *configv1.ListPodsResponse:
				slices.Reverse(r.GetPods())
			case *configv1.ListSourcesResponse:
				slices.Reverse(r.GetSources())
			}
			return answer, err
		}}
	}
	op := func(op configv1.Op) fault {
		return answers("ApplyPod", func(answer *configv1.ApplyPodResponse, err error) error {
			if answer.GetPod() != nil {
				answer.Pod.Op = op
			}
			return err
		})
	}
	return []brokenCase{
		{"a snapshot without pods", "snapshot", noSnapshot()},
		{"sources before pods", "source-after-pods", fault{stream: func(string, proto.Message) func(proto.Message) []proto.Message {
			var pods []proto.Message
			return func(m proto.Message) []proto.Message {
				r := m.(*configv1.WatchPodUpdatesResponse)
				if r.GetPod() != nil && r.GetFrame().GetKind() == snapshot {
					pods = append(pods, m)
					return nil
				}
				if r.GetFrame().GetKind() == streamv1.Kind_KIND_SYNCED {
					return append(pods, m)
				}
				return []proto.Message{m}
			}
		}}},
		{"no sets", "mode-snapshot", fault{request: func(_ string, request proto.Message) {
			if r, ok := request.(*configv1.WatchPodUpdatesRequest); ok {
				r.Mode = configv1.Mode_MODE_INCREMENTAL
			}
		}}},
		{"any mode", "mode-unknown", fault{request: func(_ string, request proto.Message) {
			if r, ok := request.(*configv1.WatchPodUpdatesRequest); ok {
				r.Mode = configv1.Mode_MODE_INCREMENTAL
			}
		}}},
		{"unsorted pods", "list-pods", reversed()},
		{"unsorted sources", "list-sources", reversed()},
		{"no addition", "apply-new", noDeltas()},
		{"an addition that is an update", "apply-new", op(configv1.Op_OP_UPDATE)},
		{"no update", "apply-changed", noDeltas()},
		{"always an update", "apply-unchanged", op(configv1.Op_OP_UPDATE)},
		{"a dry run that is none", "apply-dry-run", fault{request: func(_ string, request proto.Message) {
			if r, ok := request.(*configv1.ApplyPodRequest); ok {
				r.DryRun = false
			}
		}}},
		{"another code for an invalid pod", "apply-invalid", withCode("ApplyPod", codes.Internal)},
		{"no violations", "apply-invalid", withCode("ApplyPod", codes.InvalidArgument)},
		{"only in memory", "apply-durable", answers("ListPods", func(r *configv1.ListPodsResponse, err error) error {
			r.Pods = nil
			return err
		})},
		{"no removal", "delete", noDeltas()},
		{"a key that stays", "delete", eachFrame(func(f *streamv1.Frame) bool { f.Removed = false; return true })},
		{"an unknown pod is deleted", "delete-unknown", withCode("DeletePod", codes.OK)},
	}
}

func brokenNodes() []brokenCase {
	return []brokenCase{
		{"no Node", "get-node", answers("GetNode", func(answer *nodev1.GetNodeResponse, err error) error {
			if answer.GetNode() != nil {
				answer.Node.Node = nil
			}
			return err
		})},
		{"another key", "watch-node", eachFrame(func(f *streamv1.Frame) bool {
			if f.GetKey() != "" {
				f.Key = "node/" + f.GetKey()
			}
			return true
		})},
		{"no health", "health", withCode("GetHealth", codes.Unavailable)},
		{"unhealthy without a reason", "health", answers("GetHealth", func(h *nodev1.GetHealthResponse, err error) error {
			h.Healthy, h.Reasons = false, nil
			return err
		})},
	}
}

func brokenEngines() []brokenCase {
	return []brokenCase{
		{"a snapshot without pods", "snapshot", noSnapshot()},
		{"unsorted pods", "list-pods", answers("ListPods", func(r *enginev1.ListPodsResponse, err error) error {
			slices.Reverse(r.GetPods())
			return err
		})},
		{"unsorted workers", "list-workers", answers("ListWorkers", func(r *enginev1.ListWorkersResponse, err error) error {
			slices.Reverse(r.GetWorkers())
			return err
		})},
		{"smallest images first", "list-images", answers("ListImages", func(r *enginev1.ListImagesResponse, err error) error {
			for i, image := range r.GetImages() {
				image.SizeBytes = uint64(i)
			}
			return err
		})},
		{"an unknown pod is evicted", "evict-unknown", withCode("EvictPod", codes.OK)},
		{"no reason is needed", "evict-reason", withCode("EvictPod", codes.NotFound)},
		{"a missing pod is an error", "shut-down-missing", withCode("ShutDownPods", codes.NotFound)},
		{"an unknown volume is deleted", "delete-volume-unknown", withCode("DeleteReleasedVolume", codes.OK)},
		{"no health", "health", withCode("GetHealth", codes.Unavailable)},
	}
}
