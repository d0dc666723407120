package loop_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	nodev1 "github.com/quartet-node/quartet/gen/quartet/node/v1"
	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/stream"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/fakenode"
	"github.com/quartet-node/quartet/services/syncloop/internal/engine/loop"
)

// mirrorRecorder records the calls of loop.Mirrors.
type mirrorRecorder struct {
	mu             sync.Mutex
	calls          []string
	known, statics bool
	node           types.UID
}

func (n *mirrorRecorder) note(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, text)
}

// Want implements loop.Mirrors.
func (n *mirrorRecorder) Want(pod *v1.Pod) { n.note("want " + string(pod.UID)) }

// Unwant implements loop.Mirrors.
func (n *mirrorRecorder) Unwant(uid types.UID) { n.note("unwant " + string(uid)) }

// Seen implements loop.Mirrors.
func (n *mirrorRecorder) Seen(mirror *v1.Pod) { n.note("seen " + string(mirror.UID)) }

// Gone implements loop.Mirrors.
func (n *mirrorRecorder) Gone(uid types.UID) { n.note("gone " + string(uid)) }

// SetKnown implements loop.Mirrors.
func (n *mirrorRecorder) SetKnown(mirrors, statics bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known, n.statics = mirrors, statics
}

// SetNode implements loop.Mirrors.
func (n *mirrorRecorder) SetNode(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.node = uid
}

func (n *mirrorRecorder) has(texts ...string) func() bool {
	return func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return !slices.ContainsFunc(texts, func(text string) bool { return !slices.Contains(n.calls, text) })
	}
}

func (n *mirrorRecorder) isSynced(mirrors, statics bool) func() bool {
	return func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.known == mirrors && n.statics == statics
	}
}

// TestMirrorPodsAreReportedAndNotRun checks the calls of loop.Mirrors, also across a restart of configmux.
func TestMirrorPodsAreReportedAndNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &mirrorRecorder{}
		r := start(t, func(c *loop.Config) { c.Mirrors = n })
		r.source("api", false)
		r.add(fakenode.Pod("u1", "web", always))
		mirror, ordinary := fakenode.Pod("m1", "web", always), fakenode.Pod("a1", "ordinary", always)
		mirror.Annotations = map[string]string{podset.AnnotationMirror: "u1"}
		for _, pod := range []*v1.Pod{mirror, ordinary} {
			r.config.Put(string(pod.UID), &loop.Desired{Pod: pod, Source: "api"})
		}
		r.eventually("the mirrors are notified", n.has("want u1", "seen m1"))
		r.eventually("both pods run, and the mirror pod does not", r.runs("ordinary", "web"))
		node := &v1.Node{}
		node.UID = "n1"
		data, err := node.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		r.nodes.Put("node", &nodev1.Node{Node: data, Synced: true})
		if n.has("want a1")() || n.has("seen a1")() {
			t.Error("the mirrors are notified of an ordinary pod of the API server")
		}
		r.source("api", true)
		r.eventually("the mirror pods are known", n.isSynced(true, false))
		r.source("file", true)
		r.eventually("the static pods are, too", n.isSynced(true, true))

		fresh := stream.NewLevel[*loop.Desired](stream.Config{})
		fresh.Put("source/file", &loop.Desired{Source: "file"})
		fresh.Put("source/api", &loop.Desired{Source: "api"})
		r.configPeer.set(fresh)
		r.config.Close()
		r.eventually("nothing is known of a configmux that has just begun", n.isSynced(false, false))
		fresh.Put("u1", &loop.Desired{Pod: fakenode.Pod("u1", "web", always), Source: "file"})
		fresh.Put("source/file", &loop.Desired{Source: "file", Ready: true})
		fresh.Put("source/api", &loop.Desired{Source: "api", Ready: true})
		r.eventually("all is known again", n.isSynced(true, true))
		fresh.Delete("u1")
		r.eventually("the mirrors are notified of the removals", n.has("gone m1", "unwant u1"))
		r.eventually("the mirrors have the Node", func() bool {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.node == "n1"
		})
	})
}
