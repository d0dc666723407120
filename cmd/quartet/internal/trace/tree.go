package trace

import (
	"cmp"
	"slices"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// spanReady is the span with which syncloop ends the start of a pod: the status says Ready.
const spanReady = "status.update"

// spanCreate is the span in which syncloop makes a container.
const spanCreate = "container.create"

// node is a span at its place in the tree.
type node struct {
	*span
	above *node
	// below are the spans that have this one as their parent, by start.
	below []*node
	// children is below as Jaeger gave it; prune leaves it alone, so that what is not shown still counts.
	children []*node
}

// tree is a trace in the order in which it is shown.
type tree struct {
	// roots have no parent.
	roots []*node
	// orphans have a parent that is not in the trace, with all that is below them.
	orphans []*node
}

// tops are the roots and then the orphans.
func (t *tree) tops() []*node { return slices.Concat(t.roots, t.orphans) }

// each calls do for every span, a parent before its children.
func (t *tree) each(do func(*node)) {
	stack := t.tops()
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = append(stack[:len(stack)-1], n.children...)
		do(n)
	}
}

// grow makes the tree of some spans. Spans that are each other's parents, which no honest service sends, hang below the
// earliest of them as an orphan, so that each span is in the tree exactly once.
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

// byStart orders what starts together by its end, the longer first, as a parent is before its child.
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

// window is the part of a trace that a start takes: from its first span to the pod's Ready.
type window struct {
	from, to time.Time
	// ready is the span that says that the pod is Ready; nil while there is none, and then to is the end of the last span.
	ready *node
}

// length is how long the start took.
func (w window) length() time.Duration { return w.to.Sub(w.from) }

// clip returns the part of a span that is in the window; an empty one when none is.
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

// subject is the pod that a trace is looked at for.
type subject struct {
	namespace, name string
	// uid is empty when the node could not be asked.
	uid string
	// span is the id of the span that created the container that started last; empty when it is not known.
	span string
}

// windowOf finds the start of a pod in its trace. One trace may have more than one Ready: it is the first after the
// span of the subject; without that span it is the last.
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
		case !saysReady(n.span, pod):
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

// saysReady is true for the span with which a pod became Ready.
func saysReady(s *span, pod subject) bool {
	if s.name != spanReady || s.attributes[string(telemetry.AttrReady)] == "false" {
		return false
	}
	uid := s.attributes[string(semconv.K8SPodUIDKey)]
	return uid == "" || pod.uid == "" || uid == pod.uid
}

// prune takes out of what is shown all spans that begin after a moment, with what is below them, and returns how many these are.
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
