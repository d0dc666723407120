package server

import (
	"testing"

	configv1 "github.com/quartet-node/quartet/gen/quartet/config/v1"
	streamv1 "github.com/quartet-node/quartet/gen/quartet/stream/v1"
	"github.com/quartet-node/quartet/services/configmux/internal/mux"
)

const (
	add, update, del, remove = configv1.Op_OP_ADD, configv1.Op_OP_UPDATE, configv1.Op_OP_DELETE, configv1.Op_OP_REMOVE
	snapshot, delta          = streamv1.Kind_KIND_SNAPSHOT, streamv1.Kind_KIND_DELTA
)

// What a change is depends on what the subscriber has been sent: others may have been folded into it.
func TestTheOperationIsThatOfTheSubscriber(t *testing.T) {
	type message struct {
		kind     streamv1.Kind
		removed  bool
		op, want configv1.Op
	}
	for name, tc := range map[string]struct {
		start    streamv1.Start
		messages []message
	}{
		"a pod of the snapshot is new whatever happened to it last": {
			streamv1.Start_START_SNAPSHOT, []message{{snapshot, false, update, add}, {delta, false, update, update}},
		},
		"an addition with an update folded into it": {
			streamv1.Start_START_SNAPSHOT, []message{{delta, false, update, add}, {delta, false, del, del}},
		},
		"a removal and an addition folded together": {
			streamv1.Start_START_SNAPSHOT_EPOCH, []message{{snapshot, false, add, add}, {delta, false, add, update}},
		},
		"a removal, and the pod's return": {
			streamv1.Start_START_SNAPSHOT, []message{{delta, false, add, add}, {delta, true, update, remove}, {delta, false, add, add}},
		},
		"after a resumption what the source said stands": {
			streamv1.Start_START_RESUMED, []message{{delta, false, update, update}, {delta, false, add, update}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := watch{known: map[string]bool{}}
			w.response(&streamv1.Frame{Kind: streamv1.Kind_KIND_OPENED, Opening: &streamv1.Opening{Start: tc.start}}, mux.Entry{})
			for i, m := range tc.messages {
				published := &configv1.PodUpdate{Op: m.op, Source: "file", Pod: []byte("pod"), Traceparent: "t"}
				got := w.response(&streamv1.Frame{Kind: m.kind, Key: "uid", Removed: m.removed}, mux.Entry{Pod: published}).GetPod()
				if got.GetOp() != m.want {
					t.Errorf("message %d is %s, want %s", i, got.GetOp(), m.want)
				}
				if published.GetOp() != m.op || got.GetSource() != "file" || string(got.GetPod()) != "pod" || got.GetTraceparent() != "t" {
					t.Errorf("message %d: published %v became %v", i, published, got)
				}
			}
		})
	}
}
