package trace

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/quartet-node/quartet/internal/telemetry"
)

// start is the last start of a pod, ready to be shown.
type start struct {
	pod     subject
	traceID string
	// link is the trace in Jaeger's user interface.
	link string
	// now is the time of the reader, for how long ago it was.
	now time.Time

	tree *tree
	// window is the start, scale what the bars are drawn to: the start, or all of the trace when that is asked for.
	window window
	scale  scale
	// slow is the slowest step, and self its own time; slow is nil when there is none.
	slow *node
	self time.Duration
	// idle is the longest time in which nothing was done.
	idle gap
	// hidden is how many spans of the trace are not in the tree, because they began after Ready.
	hidden int
}

// newStart finds the start of a pod in its trace. Spans that begin after Ready are left out, unless all are asked for.
func newStart(pod subject, t trace, all bool) start {
	s := start{pod: pod, traceID: t.id, tree: grow(t.spans)}
	s.window = windowOf(s.tree, pod)
	s.slow, s.self = slowest(s.tree, s.window)
	s.idle = longest(gapsOf(s.tree, s.window))
	drawn := s.window
	switch {
	case s.window.ready == nil:
	case all:
		s.tree.each(func(n *node) {
			if n.end.After(drawn.to) {
				drawn.to = n.end
			}
		})
	default:
		s.hidden = s.tree.prune(s.window.to)
	}
	s.scale = scaleOf(drawn, gapsOf(s.tree, drawn))
	return s
}

// complete is true when the pod is Ready and no span is without its parent: then what there is of other processes has
// come too, or never will.
func (s start) complete() bool { return s.window.ready != nil && len(s.tree.orphans) == 0 }

// line is one span as it is shown.
type line struct {
	*node
	title string
	// depth is how many spans are above it.
	depth int
	// offset is when it began after the first span.
	offset time.Duration
	// slow is true for the slowest step.
	slow bool
	// notes are shown below it.
	notes []note
}

// note is a remark on a span.
type note struct {
	kind noteKind
	text string
}

type noteKind int

const (
	noteError noteKind = iota
	noteLink
	noteClock
)

// skewShown is by how much a child must begin before its parent to be remarked on: the runtime's own times of containers
// and those of spans differ by less.
const skewShown = time.Millisecond

// lines lists spans and what is below them.
func (s start) lines(tops []*node) []line {
	type place struct {
		*node
		depth int
	}
	var stack []place
	push := func(nodes []*node, depth int) {
		for i := len(nodes) - 1; i >= 0; i-- {
			stack = append(stack, place{nodes[i], depth})
		}
	}
	push(tops, 0)
	told := make(map[string]time.Duration)
	var lines []line
	for len(stack) > 0 {
		p := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		l := line{node: p.node, title: title(p.span), depth: p.depth, offset: p.start.Sub(s.window.from), slow: p.node == s.slow}
		if p.failed {
			l.notes = append(l.notes, note{noteError, reason(l, told)})
		}
		l.notes = append(l.notes, remarks(p.node)...)
		lines = append(lines, l)
		push(p.below, p.depth+1)
	}
	return lines
}

// reason says why a span failed. What a span below it says stands there; what one above has said at an offset is not said again.
func reason(l line, told map[string]time.Duration) string {
	text := oneLine(l.message)
	for _, child := range l.below {
		below := oneLine(child.message)
		switch own, found := strings.CutSuffix(text, below); {
		case !child.failed || below == "" || !found:
		case own == "":
			return "as below"
		default:
			return own + "…"
		}
	}
	if text == "" {
		return "failed, without saying why"
	}
	if at, known := told[text]; known {
		return "as at " + length(at)
	}
	told[text] = l.offset
	return text
}

// remarks are the links of a span, and what is odd about its times.
func remarks(n *node) []note {
	var notes []note
	for _, id := range n.links {
		notes = append(notes, note{noteLink, oneLine(relation(n.span) + ": trace " + id)})
	}
	if n.above != nil {
		if early := n.above.start.Sub(n.start); early > skewShown {
			notes = append(notes, note{noteClock, fmt.Sprintf("begins %s before the span that it is part of: their clocks differ, or the clock was set", length(early))})
		}
	}
	return notes
}

// relation says what a link of a span leads to.
func relation(s *span) string {
	switch {
	case s.name == spanCreate:
		return "the container's last start"
	case s.attributes[string(telemetry.AttrEvent)] != "ContainerDied":
		return "linked to"
	}
	switch code := s.attributes[string(telemetry.AttrExitCode)]; code {
	case "":
		return "after crash"
	case "0":
		return "after exit"
	default:
		return "after crash with exit code " + code
	}
}

// length writes a duration as people compare them.
func length(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + length(-d)
	case d < time.Second:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Minute:
		return fmt.Sprintf("%.2f s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}

// oneLine keeps a text from breaking the layout, and control characters from reaching the terminal.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }), " ")
}

// title is how a span is named to people: a call without the package of its service, a step with the container that it is
// about.
func title(s *span) string {
	name := oneLine(s.name)
	if service, method, isCall := strings.Cut(name, "/"); isCall {
		return service[strings.LastIndex(service, ".")+1:] + "/" + method
	}
	if reason := oneLine(s.attributes[string(telemetry.AttrWait)]); isWait(s) && reason != "" {
		return name + " for " + reason
	}
	if container := oneLine(s.attributes[string(semconv.K8SContainerNameKey)]); container != "" {
		return name + " " + container
	}
	return name
}

// shorten makes a name fit: of a call's name the service goes first, then the end of what is left.
func shorten(name string, width int, ellipsis string) string {
	if utf8.RuneCountInString(name) <= width {
		return name
	}
	if _, method, isCall := strings.Cut(name, "/"); isCall {
		return shorten(method, width, ellipsis)
	}
	keep := max(width-utf8.RuneCountInString(ellipsis), 0)
	return string([]rune(name)[:keep]) + ellipsis
}

// wrap breaks a text into lines at its blanks; a word that is longer than a line stays whole.
func wrap(text string, width int) []string {
	var lines []string
	current := ""
	for _, word := range strings.Fields(text) {
		switch {
		case current == "":
			current = word
		case utf8.RuneCountInString(current)+1+utf8.RuneCountInString(word) <= width:
			current += " " + word
		default:
			lines = append(lines, current)
			current = word
		}
	}
	return append(lines, current)
}
