package trace

import (
	"cmp"
	"slices"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// spanReady is the span with which syncloop ends the start of a pod: the status becomes Ready.
const spanReady = "status.update"

// spanCreate is the span in which syncloop creates a container.
const spanCreate = "container.create"

// node is a span in the tree.
type node struct {
	*span
	above *node
	// below are the displayed children, sorted by start.
	below []*node
	// children are all children; prune does not change them, so that hidden ones still count.
	children []*node
}

// tree is a trace in the order of the output.
type tree struct {
	// roots have no parent.
	roots []*node
	// orphans are spans whose parent is not in the trace, with their descendants.
	orphans []*node
}

// tops returns the roots and then the orphans.
func (t *tree) tops() []*node { return slices.Concat(t.roots, t.orphans) }

// each calls do for every span, parents first.
func (t *tree) each(do func(*node)) {
	stack := t.tops()
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = append(stack[:len(stack)-1], n.children...)
		do(n)
	}
}

// grow builds the tree of spans. Spans in a cycle of parents become an orphan of the earliest of them, so that each
// span is in the tree exactly once.
func grow(spans []*span) *tree {
	nodes := make([]*node, len(spans))
	byID := make(map[string]*node, len(spans))
	for i, s := range spans {
		nodes[i] = &node{span: s}
		byID[s.id] = nodes[i]
	}
	slices.SortStableFunc(nodes, byStart)
	t := &tree{}
	for _, n := range nodes {
		switch parent := byID[n.parent]; {
		case n.parent == "":
			t.roots = append(t.roots, n)
		case parent == nil:
			t.orphans = append(t.orphans, n)
		default:
			n.above = parent
			parent.children = append(parent.children, n)
		}
	}
	t.breakCircles(nodes)
	for _, n := range nodes {
		n.below = n.children
	}
	return t
}

// byStart sorts by start, and then the longer first, as a parent precedes its child.
func byStart(x, y *node) int {
	return cmp.Or(x.start.Compare(y.start), y.end.Compare(x.end), strings.Compare(x.id, y.id))
}

func (t *tree) breakCircles(nodes []*node) {
	reached := make(map[*node]bool, len(nodes))
	t.each(func(n *node) { reached[n] = true })
	for _, n := range nodes {
		if reached[n] {
			continue
		}
		n.above.children = slices.DeleteFunc(n.above.children, func(c *node) bool { return c == n })
		n.above = nil
		(&tree{roots: []*node{n}}).each(func(n *node) { reached[n] = true })
		t.orphans = append(t.orphans, n)
	}
}

// window is the part of a trace that is a start: from its first span to the pod's Ready.
type window struct {
	from, to time.Time
	// ready is the span in which the pod becomes Ready; nil if there is none, and then to is the end of the last span.
	ready *node
}

// length returns the duration of the start.
func (w window) length() time.Duration { return w.to.Sub(w.from) }

// clip returns the part of a span in the window; empty if there is none.
func (w window) clip(s *span) (from, to time.Time) {
	from, to = s.start, s.end
	if from.Before(w.from) {
		from = w.from
	}
	if to.After(w.to) {
		to = w.to
	}
	if to.Before(from) {
		to = from
	}
	return from, to
}

// subject is the pod of a trace.
type subject struct {
	namespace, name string
	// uid is empty if the node does not answer.
	uid string
	// span is the ID of the span that created the last started container; empty if unknown.
	span string
}

// windowOf finds the start of a pod in its trace. If a trace has several Ready spans, it is the first after the span of
// the subject, or the last without that span.
func windowOf(t *tree, pod subject) window {
	var w window
	var created *node
	t.each(func(n *node) {
		if w.from.IsZero() || n.start.Before(w.from) {
			w.from = n.start
		}
		if n.end.After(w.to) {
			w.to = n.end
		}
		if n.id == pod.span {
			created = n
		}
	})
	t.each(func(n *node) {
		switch {
		case !reportsReady(n.span, pod):
		case created != nil && n.end.Before(created.start):
		case w.ready == nil,
			created != nil && n.end.Before(w.ready.end),
			created == nil && n.end.After(w.ready.end):
			w.ready = n
		}
	})
	if w.ready != nil {
		w.to = w.ready.end
	}
	return w
}

// reportsReady reports whether a span made a pod Ready.
func reportsReady(s *span, pod subject) bool {
	if s.name != spanReady || s.attributes[string(telemetry.AttrReady)] == "false" {
		return false
	}
	uid := s.attributes[string(semconv.K8SPodUIDKey)]
	return uid == "" || pod.uid == "" || uid == pod.uid
}

// prune hides all spans that begin after a moment, with their descendants, and returns their number.
func (t *tree) prune(after time.Time) (hidden int) {
	var cut func(nodes []*node) []*node
	cut = func(nodes []*node) []*node {
		var kept []*node
		for _, n := range nodes {
			if n.start.After(after) {
				(&tree{roots: []*node{n}}).each(func(*node) { hidden++ })
				continue
			}
			n.below = cut(n.below)
			kept = append(kept, n)
		}
		return kept
	}
	t.roots, t.orphans = cut(t.roots), cut(t.orphans)
	return hidden
}
